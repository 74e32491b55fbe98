# ruff: noqa: E501
"""Ways in which a training script writes or changes files, each as a piece of code.

The code of a way runs in a folder of its own, which `precious` has filled.  It has these names:
`old` (a file to damage), `folder`, `scratch` (a folder that may be written), `late` (seconds that a
daemon waits), `victim` (a process outside that holds `old` open for writing as descriptor
`VICTIM_FD`), `terminal` (a terminal of another session), `call`, `syscall`, and what `NAMES` imports.  A way with nothing to show for it in the
folder raises `Escaped` if it could do what it should not.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import hashlib
import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

__all__ = ["NAMES", "VICTIM_FD", "WAYS", "facts", "precious", "run_way", "victim"]

VICTIM_FD = 57

NAMES = """
import ctypes, json, mmap, multiprocessing, os, platform, shutil, signal, socket, sqlite3, stat
import struct, subprocess, sys, tempfile, threading, time
from pathlib import Path

class Escaped(BaseException):
    pass

libc = ctypes.CDLL(None, use_errno=True)

def call(name, *arguments):
    function = getattr(libc, name)
    function.restype = ctypes.c_long if name == "syscall" else ctypes.c_int
    given = [
        os.fsencode(a) if isinstance(a, str) else ctypes.c_long(a) if isinstance(a, int) else a
        for a in arguments
    ]
    result = function(*given)
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return result

def syscall(number, *arguments):
    return call("syscall", number, *arguments)

def shell(line):
    subprocess.run(["sh", "-c", line], check=True, capture_output=True)
"""

_RING = '''
def ring(*fields):
    """Do one operation of io_uring: opcode, descriptor, address, length, offset, and flags."""
    parameters = ctypes.create_string_buffer(120)
    number = syscall(425, 2, parameters)
    head, tail, mask, _, _, _, places = struct.unpack_from("7I", parameters, 40)
    entries = mmap.mmap(number, 4096, offset=0x10000000)
    rings = mmap.mmap(number, 4096)
    opcode, descriptor, address, length, offset, flags = fields
    struct.pack_into("<BBHiQQII", entries, 0, opcode, 0, 0, descriptor, offset, address, length, flags)
    struct.pack_into("I", rings, places, 0)
    struct.pack_into("I", rings, tail, 1)
    syscall(426, number, 1, 1, 1, 0, 0)
    completed = struct.unpack_from("10I", parameters, 80)[5]
    result = struct.unpack_from("i", rings, completed + 8)[0]
    if result < 0:
        raise OSError(-result, f"io_uring: {os.strerror(-result)}")
    return result

def address(text):
    keep.append(ctypes.create_string_buffer(os.fsencode(text)))
    return ctypes.addressof(keep[-1])
keep = []
'''

_TORCH = "import torch; model = torch.nn.Linear(3, 3)\n"

WAYS: dict[str, str] = {
    # Python
    "open w": "open(old, 'w').write('lost')",
    "open a": "open(old, 'a').write('lost')",
    "open r+": "open(old, 'r+').write('lost')",
    "open x": "open('new.txt', 'x').write('new')",
    "os.open": "os.write(os.open(old, os.O_WRONLY), b'lost')",
    "os.open truncates for reading": "os.open(old, os.O_RDONLY | os.O_TRUNC)",
    "os.open dir_fd": (
        "place = os.open(folder, os.O_RDONLY); os.chdir(scratch)\n"
        "os.write(os.open('old.txt', os.O_WRONLY | os.O_TRUNC, dir_fd=place), b'lost')"
    ),
    "os.open O_TMPFILE, then link": (
        "number = os.open(folder, os.O_TMPFILE | os.O_RDWR); os.write(number, b'new')\n"
        "call('linkat', -100, f'/proc/self/fd/{number}', -100, 'new.txt', 0x400)"
    ),
    "io.FileIO": "import io; io.FileIO(old, 'r+').write(b'lost')",
    "opener": "open(old, 'w', opener=lambda path, flags: os.open(path, flags)).write('lost')",
    "posix.open": "import posix; posix.write(posix.open(old, os.O_WRONLY), b'lost')",
    "pathlib": "Path(old).write_text('lost')",
    "pathlib touch": "time.sleep(0.01); Path(old).touch()",
    "shutil.copy": "shutil.copy('script.sh', old)",
    "shutil.copy2": "shutil.copy2('script.sh', old)",
    "shutil.copyfile": "shutil.copyfile('script.sh', old)",
    "shutil.copymode": "shutil.copymode('script.sh', old)",
    "shutil.copystat": "shutil.copystat('script.sh', old)",
    "shutil.copytree": "shutil.copytree('tree', 'tree2')",
    "shutil.move": "shutil.move(old, 'moved.txt')",
    "shutil.move into scratch": "shutil.move(old, scratch + '/moved.txt')",
    "shutil.rmtree": "shutil.rmtree('tree')",
    "rmtree, then makedirs": "shutil.rmtree('tree'); os.makedirs('tree')",
    "shutil.unpack_archive": (
        "name = shutil.make_archive(scratch + '/a', 'tar', 'tree'); shutil.unpack_archive(name, folder)"
    ),
    "os.rename": "os.rename(old, 'moved.txt')",
    "os.rename a folder": "os.rename('tree', 'moved')",
    "os.replace": "os.replace('script.sh', old)",
    "os.replace from scratch": "Path(scratch, 'r').write_text('lost'); os.replace(scratch + '/r', old)",
    "tempfile beside, then replace": (
        "file = tempfile.NamedTemporaryFile('w', dir=folder, delete=False)\n"
        "file.write('lost'); file.close(); os.replace(file.name, old)"
    ),
    "os.link": "os.link(old, 'second.txt')",
    "os.link into scratch, then write": (
        "os.link(old, scratch + '/linked'); open(scratch + '/linked', 'w').write('lost')"
    ),
    "os.symlink": "os.symlink(old, 'pointer.txt')",
    "os.symlink in scratch, then write": (
        "os.symlink(old, scratch + '/pointer'); open(scratch + '/pointer', 'w').write('lost')"
    ),
    "os.unlink": "os.unlink(old)",
    "os.remove dir_fd": "os.remove('old.txt', dir_fd=os.open(folder, os.O_RDONLY))",
    "os.mkdir": "os.mkdir('made'); Path('made/in').write_text('new')",
    "os.rmdir": "os.rmdir('empty')",
    "os.mkfifo": "os.mkfifo('pipe')",
    "os.mknod": "os.mknod('node')",
    "a socket": "socket.socket(socket.AF_UNIX).bind('socket')",
    "os.truncate": "os.truncate(old, 0)",
    "os.ftruncate": "os.ftruncate(os.open(old, os.O_RDWR), 0)",
    "os.posix_fallocate": "os.posix_fallocate(os.open(old, os.O_RDWR), 0, 100_000)",
    "os.sendfile": (
        "os.sendfile(os.open(old, os.O_RDWR), os.open('script.sh', os.O_RDONLY), 0, 4)"
    ),
    "os.copy_file_range": (
        "os.copy_file_range(os.open('script.sh', os.O_RDONLY), os.open(old, os.O_RDWR), 4)"
    ),
    "mmap": "mmap.mmap(os.open(old, os.O_RDWR), 0)[:4] = b'lost'",
    "logging": "import logging; logging.FileHandler(old).emit(logging.makeLogRecord({'msg': 'lost'}))",
    "csv": "import csv; csv.writer(open(old, 'a')).writerow([1, 2])",
    "json.dump": "json.dump({}, open(old, 'w'))",
    "pickle": "import pickle; pickle.dump(1, open(old, 'wb'))",
    "gzip": "import gzip; gzip.open(old, 'wb').close()",
    "zipfile": "import zipfile; zipfile.ZipFile(old, 'a').writestr('a', 'b')",
    "shelve": "import shelve; shelve.open('shelf', 'n').close()",
    "dbm": "import dbm.dumb; dbm.dumb.open('dumb', 'c').close()",
    "sqlite3": (
        "base = sqlite3.connect('old.sqlite'); base.execute('insert into t values (2)'); base.commit()"
    ),
    "sqlite3, a new file": "sqlite3.connect('new.sqlite').execute('create table t (a)')",
    "fileinput": (
        "import fileinput\nfor line in fileinput.input(old, inplace=True): print('lost')"
    ),
    "bytecode of a program": (
        "variables = {**os.environ, 'PYTHONDONTWRITEBYTECODE': ''}\n"
        "subprocess.run([sys.executable, '-c', 'import helper'], check=True, env=variables)"
    ),
    "compileall": "import compileall; compileall.compile_dir('.', quiet=1, force=True)",
    # metadata
    "os.chmod": "os.chmod(old, 0)",
    "os.chmod a folder": "os.chmod('tree', 0o777)",
    "os.fchmod of a descriptor for reading": "os.fchmod(os.open(old, os.O_RDONLY), 0)",
    "os.chmod by a descriptor": "os.chmod(os.open(old, os.O_RDONLY), 0)",
    "os.chmod by /proc": "os.chmod(f'/proc/self/fd/{os.open(old, os.O_RDONLY)}', 0)",
    "os.chmod dir_fd": "os.chmod('old.txt', 0, dir_fd=os.open(folder, os.O_RDONLY))",
    "os.chmod by a link in scratch": "os.symlink(old, scratch + '/c'); os.chmod(scratch + '/c', 0)",
    "os.chown": "os.chown(old, 12345, 12345)",
    "os.lchown": "os.lchown(old, 12345, 12345)",
    "os.fchown": "os.fchown(os.open(old, os.O_RDONLY), 12345, 12345)",
    "shutil.chown": "shutil.chown(old, 12345)",
    "os.utime": "os.utime(old, (1, 1))",
    "os.utime by a descriptor": "os.utime(os.open(old, os.O_RDONLY), (1, 1))",
    "os.utime of a link": "os.utime('link.txt', (1, 1), follow_symlinks=False)",
    "os.setxattr": "os.setxattr(old, 'user.lost', b'lost')",
    "os.setxattr by a descriptor": "os.setxattr(os.open(old, os.O_RDONLY), 'user.lost', b'lost')",
    "os.removexattr": "os.removexattr(old, 'user.kept')",
    "an access control list": (
        "os.setxattr(old, 'system.posix_acl_access', struct.pack('<I', 2) + b''.join(struct.pack("
        "'<HHI', *e) for e in ((1, 7, 2**32 - 1), (2, 7, 99), (4, 7, 2**32 - 1), (16, 7, 2**32 - 1), "
        "(32, 7, 2**32 - 1))))"
    ),
    "chattr by ioctl": (
        "import array, fcntl; number = os.open(old, os.O_RDONLY); flags = array.array('l', [0])\n"
        "fcntl.ioctl(number, 0x80086601, flags); flags[0] |= 0x40\n"
        "fcntl.ioctl(number, 0x40086602, flags)"
    ),
    "a project number by ioctl": (
        "import fcntl; number = os.open(old, os.O_RDONLY); state = bytearray(28)\n"
        "fcntl.ioctl(number, 0x801C581F, state); struct.pack_into('I', state, 0, 0x80)\n"
        "fcntl.ioctl(number, 0x401C5820, state)"
    ),
    "a generation number by ioctl": (
        "import array, fcntl\n"
        "fcntl.ioctl(os.open(old, os.O_RDONLY), 0x40087602, array.array('l', [12345]))"
    ),
    "file_setattr": ("syscall(469, -100, old, struct.pack('<QIIII', 0x80, 0, 0, 0, 0), 24, 0)"),
    # by links, and other names for one file
    "os.utime by a link in scratch": "os.symlink(old, scratch + '/l'); os.utime(scratch + '/l', (1, 1))",
    "os.chown by a link in scratch": "os.symlink(old, scratch + '/l'); os.chown(scratch + '/l', 12345, 12345)",
    "os.setxattr by a link in scratch": "os.symlink(old, scratch + '/l'); os.setxattr(scratch + '/l', 'user.lost', b'lost')",
    "libc chmod by a link in scratch": "os.symlink(old, scratch + '/l'); call('chmod', scratch + '/l', 0)",
    "libc utimensat by a link in scratch": "os.symlink(old, scratch + '/l')\ncall('utimensat', -100, scratch + '/l', struct.pack('4q', 1, 0, 1, 0), 0)",
    "libc futimesat by a link in scratch": "os.symlink(old, scratch + '/l')\ncall('futimesat', -100, scratch + '/l', struct.pack('4q', 1, 0, 1, 0))",
    "libc fchownat by a link in scratch": "os.symlink(old, scratch + '/l'); call('fchownat', -100, scratch + '/l', 1, 1, 0)",
    "fchmodat2 by a link in scratch": "os.symlink(old, scratch + '/l'); syscall(452, -100, scratch + '/l', 0, 0)",
    "setxattrat by a link in scratch": "os.symlink(old, scratch + '/l'); value = ctypes.create_string_buffer(b'lost')\nplace = struct.pack('<QII', ctypes.addressof(value), 4, 0)\nsyscall(463, -100, scratch + '/l', 0, 'user.lost', place, 16)",
    "file_setattr by a link in scratch": "os.symlink(old, scratch + '/l')\nsyscall(469, -100, scratch + '/l', struct.pack('<QIIII', 0x80, 0, 0, 0, 0), 24, 0)",
    "a folder that is a link in scratch": "os.symlink(folder, scratch + '/d'); call('chmod', scratch + '/d/old.txt', 0)\ncall('utimensat', -100, scratch + '/d/old.txt', struct.pack('4q', 1, 0, 1, 0), 0x100)",
    "chmod, touch, chown by a link in scratch": "os.symlink(old, scratch + '/l')\nshell(f'touch -d 2001-01-01 {scratch}/l; chown 12345 {scratch}/l; chmod 0 {scratch}/l')",
    "libc chmod of /dev/fd": "call('chmod', f'/dev/fd/{os.open(old, os.O_RDONLY)}', 0)",
    "libc chmod of /proc/thread-self": "call('chmod', f'/proc/thread-self/fd/{os.open(old, os.O_RDONLY)}', 0)",
    "libc chmod of //proc/self": "call('chmod', f'//proc/self/fd/{os.open(old, os.O_RDONLY)}', 0)",
    "libc chmod of /proc/./self": "call('chmod', f'/proc/./self/fd/{os.open(old, os.O_RDONLY)}', 0)",
    "libc chmod of fd from /proc/self": "number = os.open(old, os.O_RDONLY); os.chdir('/proc/self'); call('chmod', f'fd/{number}', 0)",
    "libc chmod of a link to /proc/self": "number = os.open(old, os.O_RDONLY); os.symlink(f'/proc/self/fd/{number}', scratch + '/l')\ncall('chmod', scratch + '/l', 0)",
    "libc utimensat of /dev/fd": "call('utimensat', -100, f'/dev/fd/{os.open(old, os.O_RDONLY)}', struct.pack('4q', 1, 0, 1, 0), 0)",
    "libc chmod after chroot": "number = os.open(folder, os.O_RDONLY); call('chroot', scratch); os.fchdir(number)\ncall('chmod', 'old.txt', 0)",
    "libc chmod of an absolute path after chroot": "os.makedirs(scratch + scratch); call('chroot', folder); call('chmod', '/old.txt', 0)",
    "libc chmod while its path changes": "other = scratch + '/o'; Path(other).touch(); path = ctypes.create_string_buffer(4096); ends = []\ndef change():\n    while not ends:\n        for name in (old, other): ctypes.memmove(path, name.encode() + bytes(1), len(name) + 1)\nthread = threading.Thread(target=change); thread.start(); before = os.stat(old).st_mode\nfor _ in range(300):\n    libc.chmod(path, 0o600)\n    if os.stat(old).st_mode != before: break\nends.append(1); thread.join()",
    "libc chmod while a link changes": "other = scratch + '/o'; Path(other).touch(); ends = []; before = os.stat(old).st_mode\nos.symlink(old, scratch + '/a'); os.symlink(other, scratch + '/b')\ndef change():\n    while not ends: libc.syscall(316, -100, (scratch + '/a').encode(), -100, (scratch + '/b').encode(), 2)\nthread = threading.Thread(target=change); thread.start()\nfor _ in range(300):\n    call('chmod', scratch + '/a', 0o600)\n    if os.stat(old).st_mode != before: break\nends.append(1); thread.join()",
    "links where files of scratch will be": "top = os.path.dirname(scratch); made = []\nfor number in range(100):\n    for sign in '~-':\n        try: os.symlink(old, f'{top}/{number}{sign}old.txt'); made.append(f'{top}/{number}{sign}old.txt')\n        except OSError: pass\nfor name in ('open', 'creat'):\n    try: call(name, old, os.O_WRONLY | os.O_TRUNC, 0o600)\n    except OSError: pass\nfor path in made: os.unlink(path)",
    "links in place of all files of scratch": "top = os.path.dirname(scratch)\nfor number in (call('open', old, os.O_RDWR), call('open', 'new.txt', os.O_RDWR | os.O_CREAT, 0o600)): os.write(number, b'a')\nmade = [path for path in Path(top).iterdir() if '~' in path.name or path.name == 'kept_writes.txt']\nfor path in made: os.rename(path, f'{path}.kept'); os.symlink(old, path)\nfor name in (old, 'new.txt'):\n    try: os.write(call('open', name, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), b'lost')\n    except OSError: pass\ntry: call('mkdir', 'noted', 0o700)\nexcept OSError: pass\nfor path in made: os.unlink(path); os.rename(f'{path}.kept', path)",
    # C and system calls
    "libc open": "call('write', call('open', old, os.O_WRONLY), b'lost', 4)",
    "libc open truncates": "call('open', old, os.O_RDONLY | os.O_TRUNC)",
    "libc creat": "call('creat', old, 0o600)",
    "libc fopen": (
        "libc.fopen.restype = libc.fclose.argtypes = None\n"
        "libc.fopen.restype = ctypes.c_void_p; libc.fclose.argtypes = [ctypes.c_void_p]\n"
        "file = libc.fopen(old.encode(), b'w')\nif not file: raise OSError(ctypes.get_errno(), 'fopen')\n"
        "libc.fclose(file)"
    ),
    "libc unlink": "call('unlink', old)",
    "libc unlinkat a folder": "call('unlinkat', -100, 'empty', 0x200)",
    "libc rename": "call('rename', old, 'moved.txt')",
    "libc chmod": "call('chmod', old, 0)",
    "libc fchmodat": "call('fchmodat', -100, old, 0, 0)",
    "fchmodat2": "syscall(452, -100, old, 0, 0x100)",
    "libc chown": "call('chown', old, 12345, 12345)",
    "libc fchownat of a descriptor": "call('fchownat', os.open(old, os.O_PATH), '', 1, 1, 0x1000)",
    "libc utimes": "call('utimes', old, struct.pack('4q', 1, 0, 1, 0))",
    "libc utime": "call('utime', old, struct.pack('2q', 1, 1))",
    "libc utimensat": "call('utimensat', -100, old, struct.pack('4q', 1, 0, 1, 0), 0)",
    "libc futimens": "call('futimens', os.open(old, os.O_RDONLY), struct.pack('4q', 1, 0, 1, 0))",
    "libc futimesat": "call('futimesat', -100, old, struct.pack('4q', 1, 0, 1, 0))",
    "libc setxattr": "call('setxattr', old, 'user.lost', b'lost', 4, 0)",
    "libc fsetxattr": "call('fsetxattr', os.open(old, os.O_RDONLY), 'user.lost', b'lost', 4, 0)",
    "libc lremovexattr": "call('lremovexattr', old, 'user.kept')",
    "setxattrat": (
        "value = ctypes.create_string_buffer(b'lost')\n"
        "syscall(463, -100, old, 0, 'user.lost', struct.pack('<QII', ctypes.addressof(value), 4, 0), 16)"
    ),
    "removexattrat": "syscall(466, -100, old, 0, 'user.kept')",
    "libc truncate": "call('truncate', old, 0)",
    "libc ftruncate": "call('ftruncate', call('open', old, os.O_RDWR), 0)",
    "libc fallocate punches a hole": "call('fallocate', call('open', old, os.O_RDWR), 3, 0, 4096)",
    "libc link": "call('link', old, 'second.txt')",
    "libc linkat of a descriptor": (
        "call('linkat', os.open(old, os.O_PATH), '', -100, 'second.txt', 0x1000)"
    ),
    "libc link into scratch": "call('link', old, scratch + '/second')",
    "libc symlink": "call('symlink', old, 'pointer.txt')",
    "libc mkdir": "call('mkdir', 'made', 0o755)",
    "libc mknod": "call('mknod', 'node', stat.S_IFREG | 0o600, 0)",
    "libc renameat2 exchanges": (
        "Path(scratch, 'x').write_text('lost'); call('renameat2', -100, scratch + '/x', -100, old, 2)"
    ),
    "libc renameat2 exchanges beside": "call('renameat2', -100, 'script.sh', -100, old, 2)",
    "openat2": (
        "number = syscall(437, -100, old, struct.pack('<QQQ', os.O_WRONLY, 0, 0), 24)\n"
        "os.write(number, b'lost')"
    ),
    "open_by_handle_at": (
        "handle = ctypes.create_string_buffer(struct.pack('<II', 128, 0) + bytes(128)); mount = ctypes.c_int()\n"
        "call('name_to_handle_at', -100, old, handle, ctypes.byref(mount), 0)\n"
        "os.write(call('open_by_handle_at', os.open(folder, os.O_RDONLY), handle, os.O_WRONLY), b'lost')"
    ),
    "io_uring opens and writes": (
        _RING
        + "number = ring(18, -100, address(old), 0, 0, os.O_WRONLY); os.write(number, b'lost')"
    ),
    "io_uring unlinks": _RING + "ring(36, -100, address(old), 0, 0, 0)",
    "io_uring sets an attribute": (
        _RING + "value = address('lost'); parameters = ctypes.create_string_buffer(120)\n"
        "number = syscall(425, 2, parameters)\n"
        "tail = struct.unpack_from('7I', parameters, 40)\n"
        "entries = mmap.mmap(number, 4096, offset=0x10000000); rings = mmap.mmap(number, 4096)\n"
        "struct.pack_into('<BBHiQQII', entries, 0, 42, 0, 0, 0, value, address('user.lost'), 4, 0)\n"
        "struct.pack_into('<Q', entries, 48, address(old))\n"
        "struct.pack_into('I', rings, tail[6], 0); struct.pack_into('I', rings, tail[1], 1)\n"
        "syscall(426, number, 1, 1, 1, 0, 0)\n"
        "completed = struct.unpack_from('10I', parameters, 80)[5]\n"
        "result = struct.unpack_from('i', rings, completed + 8)[0]\n"
        "if result < 0: raise OSError(-result, os.strerror(-result))"
    ),
    "chmod as a 32-bit system call": (
        "if platform.machine() != 'x86_64': raise OSError('x86_64 only')\n"
        "place = libc.mmap; place.restype = ctypes.c_void_p\n"
        "place.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + 3 * [ctypes.c_int] + [ctypes.c_long]\n"
        "low = place(None, 8192, 7, 0x62, -1, 0)\n"
        "code = bytes.fromhex('53b80f000000bb') + struct.pack('<I', low + 4096)\n"
        "code += bytes.fromhex('b900000000cd805bc3')\n"
        "ctypes.memmove(low, code, len(code)); ctypes.memmove(low + 4096, old.encode() + bytes(1), len(old) + 1)\n"
        "result = ctypes.CFUNCTYPE(ctypes.c_int)(low)()\n"
        "if result < 0: raise OSError(-result, os.strerror(-result))"
    ),
    "chmod as an x32 system call": "syscall(0x40000000 + 90, old, 0)",
    "acct": "call('acct', old); shell('true'); call('acct', None)",
    "a core file": (
        "import resource; most = resource.getrlimit(resource.RLIMIT_CORE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_CORE, (most, most)); call('prctl', 4, 1, 0, 0, 0)\n"
        "subprocess.run(['sh', '-c', 'kill -ABRT $$'])"
    ),
    "a library that writes as it is loaded": (
        "Path(scratch, 'w.c').write_text('#include <fcntl.h>\\n#include <unistd.h>\\n"
        "__attribute__((constructor)) void begin(void) {'\n"
        ' f\' int f = open("{old}", O_WRONLY); write(f, "lost", 4); }}\')\n'
        "shell(f'cc -shared -fPIC -w -o {scratch}/w.so {scratch}/w.c'); ctypes.CDLL(scratch + '/w.so')"
    ),
    # /proc, other processes, namespaces
    "/proc/self/cwd": "call('open', '/proc/self/cwd/old.txt', os.O_WRONLY | os.O_TRUNC)",
    "/proc/self/root": "call('open', '/proc/self/root' + old, os.O_WRONLY | os.O_TRUNC)",
    "/proc/self/fd reopened": (
        "call('open', f'/proc/self/fd/{os.open(old, os.O_RDONLY)}', os.O_WRONLY | os.O_TRUNC)"
    ),
    "/proc/self/fd of a folder": (
        "number = os.open(folder, os.O_RDONLY)\n"
        "call('open', f'/proc/self/fd/{number}/old.txt', os.O_WRONLY | os.O_TRUNC)"
    ),
    "/proc/PARENT/root": "call('open', f'/proc/{victim}/root' + old, os.O_WRONLY | os.O_TRUNC)",
    "/proc/PARENT/cwd": "call('open', f'/proc/{victim}/cwd/old.txt', os.O_WRONLY | os.O_TRUNC)",
    "/proc/PARENT/fd": "os.write(call('open', f'/proc/{victim}/fd/57', os.O_WRONLY), b'lost')",
    "/proc/PARENT/mem": (
        "call('open', f'/proc/{victim}/mem', os.O_RDWR); raise Escaped('the memory of another process')"
    ),
    "pidfd_getfd": "os.write(syscall(438, os.pidfd_open(victim), 57, 0), b'lost')",
    "ptrace": "call('ptrace', 16, victim, 0, 0); raise Escaped('traced another process')",
    "process_vm_writev": (
        "maps = open(f'/proc/{victim}/maps').read().splitlines()\n"
        "place = int([line for line in maps if '[heap]' in line][0].split('-')[0], 16)\n"
        "byte = ctypes.create_string_buffer(1); entry = struct.pack('QQ', ctypes.addressof(byte), 1)\n"
        "syscall(310, victim, entry, 1, struct.pack('QQ', place, 1), 1, 0)\n"
        "call('process_vm_writev', victim, entry, 1, struct.pack('QQ', place, 1), 1, 0)\n"
        "raise Escaped('wrote to the memory of another process')"
    ),
    "setns": (
        "call('setns', os.open(f'/proc/{victim}/ns/mnt', os.O_RDONLY), 0)\n"
        "call('open', old, os.O_WRONLY | os.O_TRUNC)"
    ),
    "unshare of users and mounts": (
        "call('unshare', 0x10020000); call('mount', 'none', '/', 0, 0x44000, 0)\n"
        "call('mount', folder, scratch, 0, 4096, 0)\n"
        "call('open', scratch + '/old.txt', os.O_WRONLY | os.O_TRUNC)"
    ),
    "a bind mount": (
        "call('unshare', 0x20000); call('mount', 'none', '/', 0, 0x44000, 0)\n"
        "call('mount', folder, scratch, 0, 4096, 0)\n"
        "call('open', scratch + '/old.txt', os.O_WRONLY | os.O_TRUNC)"
    ),
    "a mount over the folder": (
        "call('mount', 'none', folder + '/tree', 'tmpfs', 0, 0)\nPath('tree/new').write_text('new')"
    ),
    "open_tree and move_mount": (
        "call('unshare', 0x20000); call('mount', 'none', '/', 0, 0x44000, 0)\n"
        "number = syscall(428, -100, folder, 1); syscall(429, number, '', -100, scratch, 4)\n"
        "call('open', scratch + '/old.txt', os.O_WRONLY | os.O_TRUNC)"
    ),
    "mount_setattr": (
        "call('unshare', 0x20000); syscall(442, -100, '/', 0, struct.pack('4Q', 1, 0, 0, 0), 32)\n"
        "raise Escaped('changed a mount')"
    ),
    "chroot": ("call('chroot', folder); call('open', '/old.txt', os.O_WRONLY | os.O_TRUNC)"),
    "a device of a disk": (
        "os.mknod(scratch + '/disk', 0o600 | stat.S_IFBLK, os.makedev(7, 0))\n"
        "call('open', scratch + '/disk', os.O_WRONLY); raise Escaped('a disk is open for writing')"
    ),
    "a disk in /dev": (
        "disk = [p for p in Path('/dev').iterdir() if stat.S_ISBLK(p.stat().st_mode)][0]\n"
        "call('open', str(disk), os.O_WRONLY); raise Escaped(f'{disk} is open for writing')"
    ),
    "keys typed on the terminal of the user": (
        "import fcntl; number = os.open(terminal, os.O_RDWR)\n"
        "fcntl.ioctl(number, 0x5412, b'x'); raise Escaped('typed a key')"
    ),
    # processes
    "sh": "shell('echo lost > old.txt')",
    "cp": "subprocess.run(['cp', 'script.sh', old], check=True, capture_output=True)",
    "mv": "subprocess.run(['mv', old, 'moved.txt'], check=True, capture_output=True)",
    "rm": "subprocess.run(['rm', '-rf', old, 'tree'], check=True, capture_output=True)",
    "ln": "subprocess.run(['ln', old, 'second.txt'], check=True, capture_output=True)",
    "chmod": "subprocess.run(['chmod', '0', old], check=True, capture_output=True)",
    "chown": "subprocess.run(['chown', '12345', old], check=True, capture_output=True)",
    "touch": "subprocess.run(['touch', '-d', '2001-01-01', old], check=True, capture_output=True)",
    "tee": "subprocess.run(['tee', old], input=b'lost', check=True, capture_output=True)",
    "dd": "shell('echo lost | dd of=old.txt conv=notrunc')",
    "sed": "shell('sed -i s/PRECIOUS/lost/ old.txt')",
    "truncate": "shell('truncate -s 0 old.txt')",
    "tar": "shell(f'tar cf {scratch}/t.tar tree && rm -rf tree && tar xf {scratch}/t.tar')",
    "mkdir": "shell('mkdir made')",
    "gzip a file": "shell('gzip old.txt')",
    "os.system": (
        "code = os.system('echo lost 2>/dev/null > old.txt')\nif code: raise OSError(f'exit code {code}')"
    ),
    "os.popen": "os.popen('echo lost > old.txt 2>&1').read()",
    "os.posix_spawn": (
        "os.waitpid(os.posix_spawn('/bin/sh', ['sh', '-c', 'rm old.txt'], os.environ), 0)"
    ),
    "pty": "import pty; pty.spawn(['sh', '-c', 'echo lost > old.txt'], lambda n: os.read(n, 99))",
    "a process with its output in the file": (
        "subprocess.run(['echo', 'lost'], stdout=os.open(old, os.O_WRONLY), check=True)"
    ),
    "another Python": (
        'subprocess.run([sys.executable, \'-c\', \'open("old.txt", "w").write("lost")\'], check=True, '
        "stderr=subprocess.DEVNULL)"
    ),
    "a forked process": (
        "child = multiprocessing.get_context('fork').Process(target=os.truncate, args=(old, 0))\n"
        "child.start(); child.join()"
    ),
    "a spawned process": (
        "child = multiprocessing.get_context('spawn').Process(target=shutil.copyfile, args=('helper.py', old))\n"
        "child.start(); child.join()"
    ),
    "a process of a fork server": (
        "child = multiprocessing.get_context('forkserver').Process(target=shutil.copyfile, args=('helper.py', old))\n"
        "child.start(); child.join()"
    ),
    "a thread": (
        "import concurrent.futures as f\n"
        "f.ThreadPoolExecutor(1).submit(call, 'truncate', old, 0).result()"
    ),
    "a worker of a DataLoader": (
        "from torch.utils.data import DataLoader\n"
        "def damage(index): os.truncate(old, 0)\n"
        "list(DataLoader([1], num_workers=1, worker_init_fn=damage))"
    ),
    "a daemon": (
        "if not os.fork():\n"
        "    os.setsid()\n"
        "    if not os.fork():\n"
        "        time.sleep(late); call('truncate', old, 0)\n"
        "    os._exit(0)\n"
        "os.wait()"
    ),
    "a daemon of a shell": (
        "subprocess.Popen(['setsid', 'sh', '-c', f'sleep {late}; echo lost > old.txt'], "
        "start_new_session=True, stderr=subprocess.DEVNULL)"
    ),
    # libraries
    "numpy.save": "import numpy; numpy.save('old.npy', numpy.zeros(9))",
    "numpy.memmap": "import numpy; numpy.memmap(old, mode='r+')[:4] = 0",
    "numpy.load r+": "import numpy; numpy.load('old.npy', mmap_mode='r+')[:1] = 9",
    "numpy.tofile": "import numpy; numpy.zeros(9).tofile(old)",
    "numpy.savetxt": "import numpy; numpy.savetxt(old, numpy.zeros(9))",
    "PIL": "from PIL import Image; Image.new('L', (8, 8)).save(old, format='png')",
    "cv2.imwrite": "import cv2, numpy; cv2.imwrite('old.png', numpy.zeros((8, 8, 3), numpy.uint8))",
    "cv2.FileStorage": "import cv2; cv2.FileStorage('old.yml', 1).release()",
    "h5py w": "import h5py; h5py.File('old.h5', 'w').close()",
    "h5py r+": "import h5py; h5py.File('old.h5', 'r+').create_dataset('b', data=[1])",
    "lmdb": (
        "import lmdb; env = lmdb.open('base'); t = env.begin(write=True); t.put(b'k', b'lost'); t.commit()"
    ),
    "lmdb, a new file": "import lmdb; lmdb.open('new.lmdb', subdir=False)",
    "pyarrow": (
        "import pyarrow, pyarrow.parquet as p; p.write_table(pyarrow.table({'a': [1]}), old)"
    ),
    "pyarrow.OSFile": "import pyarrow; pyarrow.OSFile(old, 'w').write(b'lost')",
    "safetensors": "from safetensors.numpy import save_file; save_file({}, old)",
    "safetensors.torch": "from safetensors.torch import save_file; save_file({}, old)",
    "matplotlib": (
        "import matplotlib; matplotlib.use('Agg'); from matplotlib import pyplot; pyplot.savefig('new.png')"
    ),
    "torch.save": f"{_TORCH}torch.save(model, old)",
    "torch.save, the older format": (
        f"{_TORCH}torch.save(model.state_dict(), old, _use_new_zipfile_serialization=False)"
    ),
    "torch.serialization.save": (
        f"{_TORCH}from torch.serialization import save; save(model.state_dict(), old)"
    ),
    "torch.jit.save": f"{_TORCH}torch.jit.save(torch.jit.trace(model, torch.ones(3)), old)",
    "ScriptModule.save": f"{_TORCH}torch.jit.trace(model, torch.ones(3)).save(old)",
    "torch.package": (
        "from torch.package import PackageExporter\n"
        "with PackageExporter(old) as exporter: exporter.save_pickle('a', 'b.pkl', 1)"
    ),
    "torch.export.save": (
        f"{_TORCH}torch.export.save(torch.export.export(model, (torch.ones(3),)), old)"
    ),
    "torch.distributed.checkpoint": (
        f"{_TORCH}import torch.distributed.checkpoint as d\n"
        "d.save(model.state_dict(), checkpoint_id=folder + '/tree', no_dist=True)"
    ),
    "export_chrome_trace": (
        f"{_TORCH}\nwith torch.profiler.profile() as p: model(torch.ones(3))\np.export_chrome_trace(old)"
    ),
    "torch.from_file": "import torch; torch.from_file(old, shared=True, size=4).fill_(1)",
    "PyTorchFileWriter": "import torch; torch._C.PyTorchFileWriter(old).write_end_of_file()",
    "TensorBoard": (
        "from torch.utils.tensorboard import SummaryWriter\n"
        "w = SummaryWriter('tree'); w.add_scalar('a', 1, 1); w.close()"
    ),
}


# -- what is damaged ----------------------------------------------------------------------------


def precious(folder: Path) -> None:
    """Fill a folder with files that a way of writing may damage."""
    folder.mkdir(parents=True)
    (folder / "old.txt").write_bytes(b"PRECIOUS" * 4096)
    os.setxattr(folder / "old.txt", "user.kept", b"kept")
    (folder / "link.txt").symlink_to("old.txt")
    (folder / "tree" / "below").mkdir(parents=True)
    (folder / "tree" / "below" / "inside.txt").write_text("PRECIOUS")
    (folder / "empty").mkdir()
    (folder / "script.sh").write_text("echo other content\n")
    (folder / "script.sh").chmod(0o755)
    (folder / "helper.py").write_text("value = 1\n")
    (folder / "old.png").write_bytes(b"PRECIOUS")
    (folder / "old.yml").write_bytes(b"PRECIOUS")
    for kind in ("old.npy", "old.h5", "base", "old.sqlite"):
        source = _made() / kind
        (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / kind)


_MADE: list[Path] = []


def _made() -> Path:
    """Return a folder with files of libraries, made once."""
    import h5py
    import lmdb
    import numpy as np

    if _MADE:
        return _MADE[0]
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="ways-"))
    np.save(folder / "old.npy", np.arange(9.0))
    with h5py.File(folder / "old.h5", "w") as file:
        file["a"] = [1, 2]
    with lmdb.open(str(folder / "base"), map_size=2**20) as env, env.begin(write=True) as held:
        held.put(b"k", b"PRECIOUS")
    base = sqlite3.connect(folder / "old.sqlite")
    base.execute("create table t (a)")
    base.commit()
    base.close()
    _MADE.append(folder)
    return folder


def facts(folder: Path) -> dict[str, Any]:
    """Return all that can be seen of the files below a folder, and of itself.

    Of folders' own times only those of the folder's attributes count: `ctime` would change with a
    file that is made and removed again.
    """
    return {str(path.relative_to(folder)): _facts(path) for path in (folder, *folder.rglob("*"))}


def _facts(path: Path) -> tuple[Any, ...]:
    state = path.lstat()
    content, names, flags = "", {}, 0
    if stat.S_ISLNK(state.st_mode):
        content = os.readlink(path)
    if stat.S_ISREG(state.st_mode):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
    names = {
        name: os.getxattr(path, name, follow_symlinks=False)
        for name in os.listxattr(path, follow_symlinks=False)
    }
    if stat.S_ISREG(state.st_mode) or stat.S_ISDIR(state.st_mode):
        found = array.array("l", [0])
        number = os.open(path, os.O_RDONLY)
        with contextlib.suppress(OSError):
            fcntl.ioctl(number, 0x80086601, found)  # FS_IOC_GETFLAGS
            flags = found[0]
            fcntl.ioctl(number, 0x80087601, found)  # FS_IOC_GETVERSION
            flags = flags << 64 | found[0]
        os.close(number)
    changed = (state.st_mode, state.st_uid, state.st_gid, state.st_mtime_ns, state.st_nlink)
    blocks = 0 if stat.S_ISDIR(state.st_mode) else state.st_blocks
    return (*changed, blocks, content, names, flags)


@contextlib.contextmanager
def victim(folder: Path) -> Iterator[int]:
    """Give a process that has a file open for writing, and would be worth taking over."""
    program = (
        f"import os, sys; os.dup2(os.open('old.txt', os.O_RDWR), {VICTIM_FD}); print(flush=True)\n"
        "sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
    finally:
        process.kill()
        process.communicate()


def run_way(code: str, folder: Path, scratch: Path, names: Mapping[str, Any]) -> str:
    """Run a way in a process that is forked from this one; return how it ended."""
    scratch.mkdir(parents=True, exist_ok=True)
    result = scratch / "result.txt"
    with contextlib.suppress(FileNotFoundError):
        result.unlink()
    output = os.open(result, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    child = os.fork()
    if not child:
        try:
            os.setsid()
            os.dup2(os.open(os.devnull, os.O_RDWR), 0)
            os.dup2(0, 1)
            os.dup2(0, 2)
            os.chdir(folder)
            space = {"old": str(folder / "old.txt"), "folder": str(folder), "scratch": str(scratch)}
            try:
                space.update(names)
                exec(NAMES, space)
                exec(code, space)
                text = "done"
            except BaseException as error:
                text = f"{type(error).__name__}: {error}"
            os.write(output, text.encode(errors="replace")[:300])
        finally:
            os._exit(0)
    os.close(output)
    deadline = time.monotonic() + 20
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "it took too long"
        time.sleep(0.005)
    return result.read_text() or "the process was killed"
