// Command csi-disk is a CSI driver for tests, with attachment. A disk is a file with an XFS in a directory that all nodes of the
// local cluster share. Like the disks of a cloud, it can be attached to one node at a time, and only that node mounts it.
// Beside each disk, a link names the node to which it is attached, so the controller and the nodes need no other state.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"k8s.io/mount-utils"
	"k8s.io/utils/exec"
)

const name = "disk.csi.test"

type driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedNodeServer
	registration.UnimplementedRegistrationServer
	node, dir, socket string
	mounter           mount.Interface
}

func main() {
	d := &driver{mounter: mount.NewWithoutSystemd("")}
	flag.StringVar(&d.node, "node", "", "name of the node")
	flag.StringVar(&d.dir, "dir", "/tmp/statefulsingleton-disks", "directory of the disks")
	flag.StringVar(&d.socket, "socket", "", "Unix socket of CSI")
	registry := flag.String("registry", "", "directory in which the kubelet looks for sockets of plugins. Empty serves a controller only")
	root := flag.String("root", "/host", "root of the node, with the programs that mount")
	flag.Parse()
	log.SetFlags(log.Ltime | log.Lmicroseconds)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := d.serve(ctx, *root, *registry); err != nil {
		log.Fatal(err)
	}
}

// serve serves CSI, and on a node the registration with the kubelet too, until ctx ends. Then it removes its sockets: a kubelet that finds
// one that nobody serves waits for two minutes before it looks again.
func (d *driver) serve(ctx context.Context, root, registry string) error {
	if err := syscall.Chroot(root); err != nil {
		return fmt.Errorf("enter the node's root %s: %w", root, err)
	}
	if err := os.MkdirAll(d.dir, 0o755); err != nil {
		return err
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(logged))
	csi.RegisterIdentityServer(server, d)
	csi.RegisterControllerServer(server, d)
	csi.RegisterNodeServer(server, d)
	registration.RegisterRegistrationServer(server, d)
	sockets := []string{d.socket}
	if registry != "" {
		sockets = append(sockets, filepath.Join(registry, name+"-reg.sock"))
	}
	ended := make(chan error)
	for _, socket := range sockets {
		if err := errors.Join(os.MkdirAll(filepath.Dir(socket), 0o755), os.RemoveAll(socket)); err != nil {
			return err
		}
		listener, err := net.Listen("unix", socket)
		if err != nil {
			return err
		}
		go func() { ended <- server.Serve(listener) }()
	}
	defer server.Stop()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return nil
	}
}

// logged logs how long each change of a disk took.
func logged(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	start := time.Now()
	response, err := handler(ctx, request)
	if r, ok := request.(interface{ GetVolumeId() string }); ok {
		log.Printf("%s %s in %d ms: %v", filepath.Base(info.FullMethod), r.GetVolumeId(), time.Since(start).Milliseconds(), err)
	}
	return response, err
}

func (d *driver) disk(id string) string { return filepath.Join(d.dir, id+".xfs") }

// attachment is the link that names the node to which the disk is attached.
func (d *driver) attachment(id string) string { return filepath.Join(d.dir, id+".node") }

func (d *driver) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.CSIPlugin, Name: name, Endpoint: d.socket, SupportedVersions: []string{"1.0.0"}}, nil
}

func (d *driver) NotifyRegistrationStatus(_ context.Context, s *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	log.Printf("registered: %t %s", s.PluginRegistered, s.Error)
	return &registration.RegistrationStatusResponse{}, nil
}

func (d *driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: name, VendorVersion: "1"}, nil
}

func (d *driver) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{
		{Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: csi.PluginCapability_Service_CONTROLLER_SERVICE}}},
		{Type: &csi.PluginCapability_VolumeExpansion_{VolumeExpansion: &csi.PluginCapability_VolumeExpansion{Type: csi.PluginCapability_VolumeExpansion_ONLINE}}},
	}}, nil
}

func (d *driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

func (d *driver) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	response := &csi.ControllerGetCapabilitiesResponse{}
	for _, c := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME, csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME, csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	} {
		response.Capabilities = append(response.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: c}},
		})
	}
	return response, nil
}

func (d *driver) CreateVolume(_ context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	size, err := d.grow(r.Name, r.CapacityRange)
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: r.Name, CapacityBytes: size}}, err
}

// grow enlarges the file of the disk, and creates it if it does not exist.
func (d *driver) grow(id string, to *csi.CapacityRange) (size int64, err error) {
	file, err := os.OpenFile(d.disk(id), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	info, err := file.Stat()
	if err != nil {
		return 0, err
	}
	size = max(info.Size(), to.GetRequiredBytes())
	return size, file.Truncate(size)
}

func (d *driver) DeleteVolume(_ context.Context, r *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	if node, err := os.Readlink(d.attachment(r.VolumeId)); err == nil {
		return nil, status.Errorf(codes.FailedPrecondition, "delete disk %s: it is attached to %s", r.VolumeId, node)
	}
	return &csi.DeleteVolumeResponse{}, os.RemoveAll(d.disk(r.VolumeId))
}

func (d *driver) ControllerPublishVolume(_ context.Context, r *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	err := os.Symlink(r.NodeId, d.attachment(r.VolumeId))
	if errors.Is(err, fs.ErrExist) {
		err = d.attachedTo(r.VolumeId, r.NodeId)
	}
	return &csi.ControllerPublishVolumeResponse{}, err
}

// attachedTo returns an error unless the disk is attached to the node.
func (d *driver) attachedTo(id, node string) error {
	if has, err := os.Readlink(d.attachment(id)); err != nil || has != node {
		return status.Errorf(codes.FailedPrecondition, "disk %s is attached to node %q, not to %q", id, has, node)
	}
	return nil
}

func (d *driver) ControllerUnpublishVolume(_ context.Context, r *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	if d.attachedTo(r.VolumeId, r.NodeId) != nil {
		return &csi.ControllerUnpublishVolumeResponse{}, nil
	}
	return &csi.ControllerUnpublishVolumeResponse{}, os.Remove(d.attachment(r.VolumeId))
}

func (d *driver) ControllerExpandVolume(_ context.Context, r *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	size, err := d.grow(r.VolumeId, r.CapacityRange)
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: size, NodeExpansionRequired: true}, err
}

func (d *driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: d.node}, nil
}

func (d *driver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	response := &csi.NodeGetCapabilitiesResponse{}
	for _, c := range []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME, csi.NodeServiceCapability_RPC_EXPAND_VOLUME,
		csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	} {
		response.Capabilities = append(response.Capabilities, &csi.NodeServiceCapability{
			Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: c}},
		})
	}
	return response, nil
}

// NodeStageVolume mounts the file system of the disk, and creates it at the first time. Ext4 would grow only with CAP_SYS_RESOURCE,
// which some machines of tests lack.
func (d *driver) NodeStageVolume(_ context.Context, r *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	if err := d.attachedTo(r.VolumeId, d.node); err != nil {
		return nil, err
	}
	return &csi.NodeStageVolumeResponse{}, d.mountOnce(r.StagingTargetPath, func() error {
		return mount.NewSafeFormatAndMount(d.mounter, exec.New()).FormatAndMount(d.disk(r.VolumeId), r.StagingTargetPath, "xfs", []string{"loop"})
	})
}

func (d *driver) NodePublishVolume(_ context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	return &csi.NodePublishVolumeResponse{}, d.mountOnce(r.TargetPath, func() error {
		return d.mounter.Mount(r.StagingTargetPath, r.TargetPath, "", []string{"bind"})
	})
}

// mountOnce calls mount unless something is mounted at the path.
func (d *driver) mountOnce(path string, mount func() error) error {
	if err := os.MkdirAll(path, 0o750); err != nil {
		return err
	}
	if mounted, err := d.mounter.IsMountPoint(path); err != nil || mounted {
		return err
	}
	return mount()
}

func (d *driver) NodeUnpublishVolume(_ context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	return &csi.NodeUnpublishVolumeResponse{}, mount.CleanupMountPoint(r.TargetPath, d.mounter, true)
}

func (d *driver) NodeUnstageVolume(_ context.Context, r *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	return &csi.NodeUnstageVolumeResponse{}, mount.CleanupMountPoint(r.StagingTargetPath, d.mounter, true)
}

// NodeExpandVolume lets the kernel read the new size of the disk's file, and enlarges the mounted file system.
func (d *driver) NodeExpandVolume(_ context.Context, r *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	device, _, err := mount.GetDeviceNameFromMount(d.mounter, r.VolumePath)
	if err != nil {
		return nil, err
	}
	if out, err := exec.New().Command("losetup", "--set-capacity", device).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("read the size of %s: %w: %s", device, err, out)
	}
	_, err = mount.NewResizeFs(exec.New()).Resize(device, r.VolumePath)
	return &csi.NodeExpandVolumeResponse{}, err
}
