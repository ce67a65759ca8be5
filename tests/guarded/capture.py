"""What travels over loopback: payloads of TCP connections, and the sockets on which processes listen."""

import os
import pathlib
import socket
import struct
import threading

ETH_P_ALL = 3
PACKET_OUTGOING = 4
SO_RCVBUFFORCE = 33
ETHERNET, TCP = 14, 6
LISTEN = "0A"


class Capture:
    """Payloads of all TCP connections over loopback while it is open, by source and destination port."""

    def __enter__(self):
        self.flows, self.stopped = {}, False
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        self.socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 256 << 20)
        self.socket.bind(("lo", 0))
        self.socket.settimeout(0.2)
        self.thread = threading.Thread(target=self.read)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stopped = True
        self.thread.join()
        self.socket.close()

    def read(self):
        while True:
            try:
                packet, address = self.socket.recvfrom(1 << 17)
            except TimeoutError:
                if self.stopped:
                    return
                continue
            # Loopback shows each packet twice: as it leaves, and as it arrives.
            if address[2] == PACKET_OUTGOING:
                self.take(packet[ETHERNET:])

    def take(self, packet):
        version = packet[0] >> 4 if packet else 0
        if version == 4 and packet[9] == TCP:
            segment = packet[(packet[0] & 15) * 4 : struct.unpack_from("!H", packet, 2)[0] or len(packet)]
        elif version == 6 and packet[6] == TCP:
            segment = packet[40:]
        else:
            return
        ports = struct.unpack_from("!HH", segment)
        payload = segment[(segment[12] >> 4) * 4 :]
        if payload:
            self.flows.setdefault(ports, bytearray()).extend(payload)

    def holds(self, needle, port=None):
        """Whether a connection, or one from or to `port`, carried these bytes."""
        return any(needle in payload for ports, payload in self.flows.items() if port is None or port in ports)

    def count(self, port):
        """Bytes from and to a port."""
        return sum(len(payload) for ports, payload in self.flows.items() if port in ports)


def descendants(pids):
    """These processes and all that they have started."""
    parents = {}
    for status in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(status.parent.name)] = int(status.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it has ended
    found = set(pids)
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def inodes(pids):
    for pid in pids:
        for name in os.scandir(f"/proc/{pid}/fd") if os.path.exists(f"/proc/{pid}/fd") else []:
            try:
                target = os.readlink(name.path)
            except OSError:
                continue
            if target.startswith("socket:["):
                yield target[8:-1]


def listening(pids):
    """Ports on which these processes listen."""
    own = set(inodes(descendants(pids)))
    ports = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in pathlib.Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTEN and fields[9] in own:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports
