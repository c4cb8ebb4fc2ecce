"""Arrays in the memory of the emulated GPU, as a package of arrays would have them: by CUDA's functions, which the extension
module of the package with the emulator exports, and by DLPack.
"""

import ctypes

import numpy as np
import ring_attention as ra

_CUDA = ctypes.CDLL(ra._core.__file__)
_PYTHON = ctypes.pythonapi
_PYTHON.PyCapsule_New.restype = ctypes.py_object
_PYTHON.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_PYTHON.PyCapsule_GetPointer.restype = ctypes.c_void_p
_PYTHON.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_CODES = {"float32": (2, 32), "float16": (2, 16), "bfloat16": (4, 16), "float64": (2, 64)}


class _Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64), ("manager_ctx", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


def cuda(function, *arguments):
    code = getattr(_CUDA, function)(*arguments)
    assert code == 0, f"{function}: {code}"


def stop():
    """The GPU of this process does no more work."""
    _CUDA.emulated_gpu_stops()


def new_stream():
    """Its handle."""
    stream = ctypes.c_void_p()
    cuda("cudaStreamCreateWithPriority", ctypes.byref(stream), 1, 0)
    return stream.value


def order(first, then):
    """Work of stream `then` waits for that of `first`."""
    event = ctypes.c_void_p()
    cuda("cudaEventCreate", ctypes.byref(event))
    cuda("cudaEventRecord", event, ctypes.c_void_p(first))
    cuda("cudaStreamWaitEvent", ctypes.c_void_p(then), event, 0)
    cuda("cudaEventDestroy", event)


def as_type(array, kind):
    """The elements of a float array rounded to `kind`, as float32 again, and their bytes."""
    if kind != "bfloat16":
        stored = np.ascontiguousarray(array, kind)
        return stored.astype(np.float32), stored
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    bits = (bits + 0x7fff + (bits >> 16 & 1)) >> 16
    return (bits << 16).astype(np.uint32).view(np.float32), bits.astype(np.uint16)


class Array:
    """A copy of an array of NumPy, which is written on `stream`."""

    alive = []  # until the end: memory may be freed only when the GPU is done with it

    def __init__(self, array, kind="float32", stream=1, device=0, steps=None):
        _, stored = as_type(array, kind)
        self.shape, self.stream, self.device, self.asked = np.shape(array), stream, device, []
        self._kind, self._steps = kind, steps
        self._memory = ctypes.c_void_p()
        cuda("cudaSetDevice", device)
        cuda("cudaMalloc", ctypes.byref(self._memory), max(1, stored.nbytes))
        cuda("cudaSetDevice", 0)
        self.write(stored)
        Array.alive.append(self)

    def write(self, stored):
        cuda("cudaMemcpyAsync", self._memory, stored.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(stored.nbytes), 4,
             ctypes.c_void_p(self.stream))

    def __dlpack_device__(self):
        return 2, self.device

    def __dlpack__(self, *, stream=None):
        self.asked.append(stream)
        if stream != -1:
            order(self.stream, stream)
        extents = (ctypes.c_int64 * len(self.shape))(*self.shape)
        steps = None if self._steps is None else (ctypes.c_int64 * len(self.shape))(*self._steps)
        tensor = _Tensor(self._memory.value, 2, self.device, len(self.shape), *_CODES[self._kind], 1, extents, steps, 0, None,
                         None)
        Array.alive.append((tensor, extents, steps))
        return _PYTHON.PyCapsule_New(ctypes.byref(tensor), b"dltensor", None)


def on_host(array, stream=None, ready=None):
    """A consumer on another stream: the elements of a float32 array. `ready`: called when the copy is enqueued."""
    stream = stream or new_stream()
    assert array.__dlpack_device__()[0] == 2
    capsule = array.__dlpack__(stream=stream)
    tensor = ctypes.cast(_PYTHON.PyCapsule_GetPointer(capsule, b"dltensor"), ctypes.POINTER(_Tensor)).contents
    assert (tensor.code, tensor.bits) == _CODES["float32"] and not tensor.strides
    host = np.empty([tensor.shape[axis] for axis in range(tensor.ndim)], np.float32)
    if ready is not None:
        pinned = ctypes.c_void_p()
        cuda("cudaHostAlloc", ctypes.byref(pinned), ctypes.c_size_t(host.nbytes), 0)
        cuda("cudaMemcpyAsync", pinned, ctypes.c_void_p(tensor.data), ctypes.c_size_t(host.nbytes), 4, ctypes.c_void_p(stream))
        del array, capsule, tensor
        ready()
        cuda("cudaStreamSynchronize", ctypes.c_void_p(stream))
        ctypes.memmove(host.ctypes.data, pinned, host.nbytes)
        return host
    cuda("cudaMemcpyAsync", host.ctypes.data_as(ctypes.c_void_p), ctypes.c_void_p(tensor.data), ctypes.c_size_t(host.nbytes),
         4, ctypes.c_void_p(stream))
    return host
