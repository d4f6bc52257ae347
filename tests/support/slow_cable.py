"""Carries frames between two network cards of its own making, late, and not all of them, until its input ends."""

import fcntl
import os
import random
import select
import struct
import sys
import time
from collections import deque

_TUNSETIFF = 0x400454CA  # linux/if_tun.h, as the two below
_IFF_TAP = 0x0002
_IFF_NO_PI = 0x1000
_LARGEST_FRAME = 65536


def make_card(name: str) -> int:
    """Make a network card whose frames are read from, and written to, the descriptor that is returned."""
    card = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(card, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI))
    return card


def carry(cards: tuple[int, int], delay_s: float, loss: float) -> None:
    """Carry frames until standard input ends. All wait equally long, so the order is kept."""
    to = dict(zip(cards, reversed(cards), strict=True))
    under_way: deque[tuple[float, int, bytes]] = deque()
    chance = random.Random(0)  # noqa: S311  The same frames are lost each time.
    while True:
        patience = max(under_way[0][0] - time.monotonic(), 0.0) if under_way else None
        ready, _, _ = select.select([0, *cards], [], [], patience)
        if 0 in ready:
            return
        for card in ready:
            frame = os.read(card, _LARGEST_FRAME)
            if chance.random() >= loss:
                under_way.append((time.monotonic() + delay_s, to[card], frame))
        while under_way and under_way[0][0] <= time.monotonic():
            _, card, frame = under_way.popleft()
            try:
                os.write(card, frame)
            except OSError:  # The card is not up yet, or its queue is full: a frame is lost, as on any cable.
                continue


if __name__ == "__main__":
    own_cards = (make_card(sys.argv[1]), make_card(sys.argv[2]))
    print("ready", flush=True)  # noqa: T201  It is waited for.
    carry(own_cards, float(sys.argv[3]), float(sys.argv[4]))
