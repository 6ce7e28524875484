"""A network namespace whose only way out is a device that this process reads: what would leave the machine is seen.

    unshare --net python -m tests.daemon.outside SCRIPT ARGUMENT...

Runs the module SCRIPT of tests.daemon in it, then prints the addresses that packets were sent to, one a line.
"""

from __future__ import annotations

import fcntl
import ipaddress
import os
import socket
import struct
import subprocess
import sys
import threading

from tests.support.wait import wait_until

#: ioctl of /dev/net/tun that makes a device, and the flags for one of IP packets without a header (linux/if_tun.h).
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
DEVICE = "out0"
#: Bytes of the largest packet.
PACKET_BYTES = 65_536
#: Protocol of what the kernel itself says on a new device (neighbour and group messages).
ICMP6 = 58
#: An address that nobody has (RFC 5737): the packet to it is the last that counts.
END = "198.51.100.1"


def opened() -> int:
    """The device, as the default route for IPv4 and IPv6."""
    device = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", DEVICE.encode(), IFF_TUN | IFF_NO_PI))
    for command in (
        "link set lo up",
        f"addr add 192.0.2.1/24 dev {DEVICE}",
        f"addr add 2001:db8::1/64 dev {DEVICE} nodad",
        f"link set {DEVICE} up",
        f"route add default dev {DEVICE}",
        f"-6 route add default dev {DEVICE}",
    ):
        subprocess.run(["ip", *command.split()], check=True)
    return device


def receiver(packet: bytes) -> str | None:
    """The address that a packet is for; None for what the kernel itself sends."""
    if packet[0] >> 4 == 4:
        return str(ipaddress.IPv4Address(packet[16:20]))
    return None if packet[6] in (0, ICMP6) else str(ipaddress.IPv6Address(packet[24:40]))


def main() -> int:
    device = opened()
    seen: set[str] = set()

    def read() -> None:
        while True:
            seen.update(filter(None, [receiver(os.read(device, PACKET_BYTES))]))

    threading.Thread(target=read, daemon=True).start()
    module = __import__(f"tests.daemon.{sys.argv[1]}", fromlist=["run"])
    module.run(*sys.argv[2:])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
        last.sendto(b"the end", (END, 9))
    wait_until(lambda: END in seen)
    sys.stdout.write("\n".join(sorted(seen - {END})))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
