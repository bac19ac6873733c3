"""User numbers for samples, each in the hands of one sandbox server of the machine at a time.

Limits of processes and threads count by user, and ending a program's processes ends a user's: two servers with one
user would spoil each other's verdicts.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

from fusion_eval.errors import Fault, SandboxError
from fusion_eval.sandbox.privilege import FIRST_UID, UIDS

_NAME = "\0fusion_eval.user.{}"  # an abstract socket: nobody else gets the name while it is open, and it leaves no file


@dataclass(frozen=True, slots=True)
class Users:
    """Numbers that nobody else holds until `give_back`, or until this process ends.

    Args:
        numbers: the user numbers.
        marks: what holds them.
    """

    numbers: tuple[int, ...] = ()
    marks: tuple[socket.socket, ...] = ()

    def give_back(self) -> None:
        """Leaves the numbers to others."""
        for mark in self.marks:
            mark.close()


def take(count: int) -> Users:
    """So many unused user numbers.

    Raises:
        SandboxError: other sandboxes hold them all.
    """
    numbers: list[int] = []
    marks: list[socket.socket] = []
    for step in range(UIDS):
        number = FIRST_UID + (os.getpid() * 16 + step) % UIDS
        mark = socket.socket(socket.AF_UNIX)
        try:
            mark.bind(_NAME.format(number))
        except OSError:
            mark.close()
            continue
        numbers.append(number)
        marks.append(mark)
        if len(numbers) == count:
            return Users(tuple(numbers), tuple(marks))
    Users(marks=tuple(marks)).give_back()
    raise SandboxError(
        Fault("sandbox", f"all {UIDS} users that samples may have are taken", f"{count} of them free",
              "Other sandboxes of this machine are open: end some, or give them fewer `workers`.")
    )  # fmt: skip
