#!/usr/bin/env python3
"""Records the replies of redis-cell: record.py PORT > cases.txt, with a Redis server that has loaded the module.

A line is a command, a tab, and the reply. Commands of one key follow each other within milliseconds, and all intervals are long enough that the time
between them changes no reply.
"""
import random
import socket
import sys


def commands():
    # The example of its README, until the limit and beyond it.
    for _ in range(18):
        yield "CL.THROTTLE readme 15 30 60 1"
    # Quantities: none, all, more than the limit, returned, and without the argument.
    for quantity in [0, 0, 16, 1, 0, -4, 5, 4, 17, 1000, -100, 16]:
        yield f"CL.THROTTLE quantity 15 30 60 {quantity}"
    yield "CL.THROTTLE plain 15 30 60"
    for key, burst, count, period in [("none", 0, 1, 60), ("large", 1000, 1, 1000), ("slow", 3, 1, 86400), ("fast", 100, 1000, 100000)]:
        for _ in range(6):
            yield f"CL.THROTTLE {key} {burst} {count} {period}"
        yield f"CL.THROTTLE {key} {burst} {count} {period} {burst + 1}"
        yield f"CL.THROTTLE {key} {burst} {count} {period} {burst + 2}"
    # Another limit for a key with debt.
    yield "CL.THROTTLE changed 9 10 1000 10"
    yield "CL.THROTTLE changed 19 10 1000 5"
    yield "CL.THROTTLE changed 4 10 1000 1"
    yield "CL.THROTTLE changed 9 100 1000 1"
    # Errors and limits that make no sense.
    for arguments in ["", "k", "k 1", "k 1 1", "k a 1 1", "k 1 a 1", "k 1 1 a", "k 1 1 1 a", "k 1 1 1 1 1", "k 1.5 1 1", "k 1 0 60", "k 1 1 0", "k 1 0 0",
                      "k -1 1 60", "k -2 1 60", "k 1 -1 60", "k 1 1 -60", "k 99999999999999999999 1 60", "k '' 1 60", "k +1 1 60"]:
        yield f"CL.THROTTLE {arguments}".strip()
    # Limits from a fixed seed.
    dice = random.Random(7)
    for number in range(40):
        burst, count = dice.choice([0, 1, 5, 60, 999]), dice.choice([1, 2, 7, 30])
        period = count * dice.choice([20, 100, 3600, 86400])
        for _ in range(4):
            quantity = dice.choice([0, 1, 1, 2, burst, burst + 1, burst + 2, -1])
            yield f"CL.THROTTLE random{number} {burst} {count} {period} {quantity}"


def ask(stream, command):
    words = [word.strip("'") if word == "''" else word for word in command.split(" ")]
    message = f"*{len(words)}\r\n" + "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
    stream.write(message.encode())
    stream.flush()
    line = stream.readline().decode().rstrip("\r\n")
    if line.startswith("*"):
        return " ".join(stream.readline().decode().strip(":\r\n") for _ in range(int(line[1:])))
    return line


with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as connection, connection.makefile("rwb") as stream:
    broken = set()
    for command in commands():
        key = command.split(" ")[1:2]
        if key and key[0] in broken:
            continue
        reply = ask(stream, command)
        print(f"{command}\t{reply}")
        # A key with which more was given back than charged stays in Redis without an expiry, which distorts later replies.
        if "Error while setting key expire" in reply:
            broken.update(key)
