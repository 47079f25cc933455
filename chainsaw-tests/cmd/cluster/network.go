package main

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

const bridgeName = "nodes"

// bridgeMAC is the hardware address of the bridge. Without it, the bridge has the lowest address of its ports. When that port
// comes or goes, the other nodes lose the control plane for some 20 s, until their neighbor tables expire.
var bridgeMAC = net.HardwareAddr{0x02, 0, 0, 0, 0, 1} // locally administered

// network is the network namespace of a machine.
type network struct {
	*netlink.Handle
	ns netns.NsHandle
}

// networkOf opens the network namespace of the first process of a machine.
func networkOf(pid int) (network, error) {
	ns, err := netns.GetFromPid(pid)
	if err != nil {
		return network{}, fmt.Errorf("open the network namespace of process %d: %w", pid, err)
	}
	handle, err := netlink.NewHandleAt(ns)
	if err != nil {
		_ = ns.Close()
	}
	return network{handle, ns}, err
}

func (n network) close() {
	n.Handle.Close()
	_ = n.ns.Close()
}

// makeBridge creates the bridge in the control plane that connects the nodes. The control plane is also their router.
// The cluster has no connection to other networks.
func makeBridge(control, apiServers int) error {
	h, err := networkOf(control)
	if err != nil {
		return err
	}
	defer h.close()
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridgeName, HardwareAddr: bridgeMAC}}
	if err := h.LinkAdd(bridge); err != nil {
		return fmt.Errorf("make the nodes' bridge: %w", err)
	}
	addresses := []string{controlAddress}
	for i := 1; apiServers > 1 && i <= apiServers; i++ {
		addresses = append(addresses, apiServerAddress(i))
	}
	for _, a := range addresses {
		if err := h.AddrAdd(bridge, &netlink.Addr{IPNet: subnet(a, 24)}); err != nil {
			return fmt.Errorf("add %s to the nodes' bridge: %w", a, err)
		}
	}
	return h.LinkSetUp(bridge)
}

// subnet returns an IPv4 address with a prefix of that many bits.
func subnet(address string, bits int) *net.IPNet {
	return &net.IPNet{IP: net.ParseIP(address), Mask: net.CIDRMask(bits, 32)}
}

// connectNode creates the link between a node and the control plane if it does not exist, and enables it.
func connectNode(control, node, n int) error {
	ctl, err := networkOf(control)
	if err != nil {
		return err
	}
	defer ctl.close()
	own, err := networkOf(node)
	if err != nil {
		return err
	}
	defer own.close()
	if err := makeCable(ctl, own, n); err != nil {
		return fmt.Errorf("connect %s: %w", nodeName(n), err)
	}
	port, err := ctl.LinkByName(controlLinkName(n))
	if err != nil {
		return err
	}
	bridge, err := ctl.LinkByName(bridgeName)
	if err != nil {
		return err
	}
	if err := errors.Join(ctl.LinkSetMaster(port, bridge), ctl.LinkSetUp(port)); err != nil {
		return fmt.Errorf("connect %s: %w", nodeName(n), err)
	}
	networks := []string{nodePodNetwork(n)}
	if n == 1 {
		// Makes Service addresses work inside `exec`, because kube-proxy runs only on nodes.
		networks = append(networks, serviceNetwork)
	}
	for _, network := range networks {
		destination, err := netlink.ParseIPNet(network)
		if err != nil {
			return err
		}
		route := netlink.Route{Dst: destination, Gw: net.ParseIP(nodeAddress(n)), LinkIndex: bridge.Attrs().Index}
		if err := ctl.RouteReplace(&route); err != nil {
			return fmt.Errorf("route %s to %s: %w", network, nodeName(n), err)
		}
	}
	return nil
}

// makeCable keeps a complete link. A link with one end missing no longer exists, because both ends are removed
// together.
func makeCable(ctl, own network, n int) error {
	if _, err := own.LinkByName("eth0"); err == nil {
		return nil
	}
	// The link of a node that was just killed may still exist.
	if old, err := ctl.LinkByName(controlLinkName(n)); err == nil {
		if err := ctl.LinkDel(old); err != nil {
			return err
		}
	}
	cable := &netlink.Veth{
		LinkAttrs:     netlink.LinkAttrs{Name: controlLinkName(n), Namespace: netlink.NsFd(ctl.ns)},
		PeerName:      "eth0",
		PeerNamespace: netlink.NsFd(own.ns),
	}
	if err := ctl.LinkAdd(cable); err != nil {
		return err
	}
	eth0, err := own.LinkByName("eth0")
	if err != nil {
		return err
	}
	err = errors.Join(own.AddrAdd(eth0, &netlink.Addr{IPNet: subnet(nodeAddress(n), 24)}), own.LinkSetUp(eth0))
	if err != nil {
		return err
	}
	return own.RouteReplace(&netlink.Route{Dst: subnet("0.0.0.0", 0), Gw: net.ParseIP(controlAddress), LinkIndex: eth0.Attrs().Index})
}

// cutNode disables the node's link at the control plane.
func cutNode(control, n int) error {
	h, err := networkOf(control)
	if err != nil {
		return err
	}
	defer h.close()
	port, err := h.LinkByName(controlLinkName(n))
	if err != nil {
		return fmt.Errorf("find the link of %s: %w", nodeName(n), err)
	}
	return h.LinkSetDown(port)
}

// nodeConnected returns true if the node's link exists and is enabled.
func nodeConnected(control, n int) bool {
	h, err := networkOf(control)
	if err != nil {
		return false
	}
	defer h.close()
	port, err := h.LinkByName(controlLinkName(n))
	return err == nil && port.Attrs().Flags&net.FlagUp != 0
}
