"""NVRTC by ctypes: what CuPy calls to compile a tape, on a machine without a GPU."""

from __future__ import annotations

import ctypes
import sysconfig
from pathlib import Path


def library() -> ctypes.CDLL | None:
    """Return NVRTC, of the CUDA toolkit or its wheel, or None."""
    wheel = Path(sysconfig.get_path("platlib")) / "nvidia" / "cu13" / "lib"
    for name in ("libnvrtc.so", str(wheel / "libnvrtc.so.13")):
        try:
            found = ctypes.CDLL(name)
            for builtins in wheel.glob("libnvrtc-builtins.so.*"):  # which it looks for by name alone
                ctypes.CDLL(str(builtins))
            return found
        except OSError:
            continue
    return None


def compiled(nvrtc: ctypes.CDLL, text: str, options: list[str]) -> str:
    """Return NVRTC's log for a source. Raises AssertionError, with the log, where it does not compile."""
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"tape.cu", 0, None, None) == 0
    words = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    status = nvrtc.nvrtcCompileProgram(program, len(options), words)
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    assert status == 0, log.value.decode()
    return log.value.decode()
