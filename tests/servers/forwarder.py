"""Passes connections on to another port of this machine, as `ssh -L` does: `forwarder.py LISTEN TO [words ...]`."""

import socket
import sys
import threading


def pump(source: socket.socket, sink: socket.socket) -> None:
    while data := source.recv(65536):
        sink.sendall(data)
    sink.shutdown(socket.SHUT_WR)


with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as entrance:
    print("forwarding", flush=True)
    while True:
        near, _ = entrance.accept()
        far = socket.create_connection(("127.0.0.1", int(sys.argv[2])))
        for ends in ((near, far), (far, near)):
            threading.Thread(target=pump, args=ends, daemon=True).start()
