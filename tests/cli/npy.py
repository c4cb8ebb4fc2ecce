"""Writes and reads .npy files with the standard library, and makes broken ones."""

import ast
import math
import struct

MAGIC = b"\x93NUMPY"
CODES = {"<f8": "d", "<f4": "f", "<f2": "e", "<i8": "q", "<i4": "i"}


def header(shape, dtype="<f8", version=(1, 0), fortran=False, dictionary=None):
    """The bytes in front of the elements, as NumPy pads them; `dictionary` replaces the text of the header."""
    if dictionary is None:
        dictionary = f"{{'descr': '{dtype}', 'fortran_order': {fortran}, 'shape': {tuple(shape)}, }}"
    length_format = "<H" if version[0] == 1 else "<I"
    fixed = len(MAGIC) + 2 + struct.calcsize(length_format)
    text = dictionary.encode() + b" " * (-(fixed + len(dictionary) + 1) % 64) + b"\n"
    return MAGIC + bytes(version) + struct.pack(length_format, len(text)) + text


def pack(values, dtype):
    """Numbers as the elements of a file."""
    return struct.pack("<%d%s" % (len(values), CODES[dtype]), *values)


def write(path, shape, values, dtype="<f8", **header_words):
    """Writes a whole file."""
    assert len(values) == math.prod(shape)
    with open(path, "wb") as file:
        file.write(header(shape, dtype, **header_words) + pack(values, dtype))


def write_sparse(path, shape, dtype="<f8"):
    """A file of zeros, which takes no space on the disk."""
    with open(path, "wb") as file:
        file.write(header(shape, dtype))
        file.truncate(file.tell() + math.prod(shape) * struct.calcsize(CODES[dtype]))


def read(path):
    """(shape, dtype, elements) of a file, which must be one array in C order and not a byte more."""
    with open(path, "rb") as file:
        data = file.read()
    assert data[:6] == MAGIC, f"{path} is not a .npy file"
    length_format = "<H" if data[6] == 1 else "<I"
    begin = 8 + struct.calcsize(length_format)
    (length,) = struct.unpack(length_format, data[8:begin])
    assert (begin + length) % 64 == 0, f"{path}: the elements are not aligned"
    words = ast.literal_eval(data[begin : begin + length].decode())
    assert words["fortran_order"] is False
    code = CODES[words["descr"]]
    elements = data[begin + length :]
    count = math.prod(words["shape"])
    assert len(elements) == count * struct.calcsize("<" + code), f"{path}: wrong size"
    return words["shape"], words["descr"], list(struct.unpack("<%d%s" % (count, code), elements))
