"""Simulates a cable that delays and loses frames, for kernels without `tc netem`: a frame that arrives at one of two
TAP devices is sent from the other one. tolerates_link_flaps.sh calls it.

slow_link.py FIRST_TAP SECOND_TAP DELAY_MS JITTER_MS LOSS_PER_CENT
"""
import collections
import fcntl
import os
import random
import select
import struct
import sys
import time

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000


def tap(name):
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return device


ends = [tap(name) for name in sys.argv[1:3]]
delay, jitter, loss = (float(word) for word in sys.argv[3:6])
under_way = {end: collections.deque() for end in ends}  # {device: the frames to send there and their times, in order}
chance = random.Random(1)
while True:
    due = [frames[0][0] for frames in under_way.values() if frames]
    wait = max(0, min(due) - time.monotonic()) if due else None
    for end in select.select(ends, [], [], wait)[0]:
        frame, other = os.read(end, 65536), ends[1 - ends.index(end)]
        if chance.random() * 100 >= loss:
            late = (delay + chance.uniform(-jitter, jitter)) / 1e3
            under_way[other].append((time.monotonic() + late, frame))
    for end, frames in under_way.items():
        while frames and frames[0][0] <= time.monotonic():
            os.write(end, frames.popleft()[1])
