# cython: language_level=3, boundscheck=False, wraparound=False
# The head of the compiled code, like `rollcall.schemas.avro_primitives` for the plain one. Functions for each
# record follow. Any error raises; the caller then repeats the call with plain code, for its error.
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_INCREF
from cpython.unicode cimport PyUnicode_Check, PyUnicode_DecodeUTF8
from libc.math cimport isinf
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy

from dataclasses import MISSING
from types import MemberDescriptorType as MemberDescriptor

from rollcall.schemas import messages

cdef extern from "Python.h":
    object PyType_GenericAlloc(PyTypeObject*, Py_ssize_t)
    long long PyLong_AsLongLong(object) except? -1
    bint PyUnicode_IS_COMPACT_ASCII(object)
    const char* PyUnicode_AsUTF8AndSize(object, Py_ssize_t*) except NULL
    ctypedef struct PyMemberDescrObject:
        PyMemberDef* d_member

cdef extern from "structmember.h":
    const int T_OBJECT_EX
    ctypedef struct PyMemberDef:
        int type
        Py_ssize_t offset


cdef Py_ssize_t place(object record, str field):
    # The offset of a field in its messages: a lookup by name would take longer than the rest.
    slot = record.__dict__.get(field)
    if type(slot) is not MemberDescriptor or (<PyMemberDescrObject*>slot).d_member.type != T_OBJECT_EX:
        raise ImportError(f"{record.__name__}.{field} is no slot: the plain code serves any class")
    return (<PyMemberDescrObject*>slot).d_member.offset


cdef inline int fill(object m, Py_ssize_t at, object value) except -1:
    # Sets a field of a new message, which has no value yet.
    Py_INCREF(value)
    (<PyObject**>(<char*><void*>m + at))[0] = <PyObject*>value
    return 0


cdef inline object held(object m, Py_ssize_t at):
    cdef PyObject* value = (<PyObject**>(<char*><void*>m + at))[0]
    if value == NULL:
        wrong()
    return <object>value


cdef struct Source:
    const unsigned char* at
    const unsigned char* end


cdef struct Sink:
    char* data
    Py_ssize_t size
    Py_ssize_t room


cdef int wrong() except -1:
    raise ValueError("no message")


cdef object in_plain_words(object record, bytes d, Py_ssize_t begin):
    from rollcall.schemas.message_code import PLAIN
    return PLAIN.reader(record)(d, begin)


cdef inline object get_null(Source* s):
    return None


cdef inline int put_null(Sink* out, object x) except -1:
    return 0


cdef inline uint64_t get_varint(Source* s) except? 0xdead:
    cdef uint64_t value = 0, byte
    cdef int shift = 0
    while True:
        if s.at >= s.end or shift > 63:
            wrong()
        byte = s.at[0]
        s.at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            break
        shift += 7
    if shift and not byte or shift == 63 and byte > 1:
        wrong()
    return value


cdef inline Py_ssize_t get_length(Source* s) except -1:
    # Each item takes at least a byte, so a larger count is refused.
    cdef uint64_t n = get_varint(s)
    if n & 1 or (n >> 1) > <uint64_t>(s.end - s.at):
        wrong()
    return n >> 1


cdef inline object get_long(Source* s):
    cdef uint64_t n = get_varint(s)
    return <int64_t>((n >> 1) ^ -(n & 1))


cdef inline object get_string(Source* s):
    cdef Py_ssize_t n = get_length(s)
    s.at += n
    return PyUnicode_DecodeUTF8(<const char*>s.at - n, n, NULL)


cdef inline object get_bytes(Source* s):
    cdef Py_ssize_t n = get_length(s)
    s.at += n
    return PyBytes_FromStringAndSize(<const char*>s.at - n, n)


cdef inline object get_boolean(Source* s):
    if s.at >= s.end or s.at[0] > 1:
        wrong()
    s.at += 1
    return (s.at - 1)[0] == 1


cdef inline object get_float(Source* s):
    cdef float x
    if s.end - s.at < 4:
        wrong()
    memcpy(&x, s.at, 4)
    s.at += 4
    return <double>x


cdef inline object get_double(Source* s):
    cdef double x
    if s.end - s.at < 8:
        wrong()
    memcpy(&x, s.at, 8)
    s.at += 8
    return x


cdef inline Py_ssize_t get_index(Source* s, uint64_t count) except -1:
    cdef uint64_t n = get_varint(s)
    if n & 1 or (n >> 1) >= count:
        wrong()
    return n >> 1


cdef inline Py_ssize_t get_block(Source* s, const unsigned char** end) except -1:
    # The number of items of the next block; 0 after the last one. A negative count is followed by their size.
    cdef uint64_t n = get_varint(s)
    cdef uint64_t count = n >> 1
    cdef Py_ssize_t size
    end[0] = NULL
    if n & 1:
        count += 1
        size = get_length(s)
        end[0] = s.at + size
    if count > <uint64_t>(s.end - s.at):
        wrong()
    return count


cdef inline int end_items(Source* s, const unsigned char* end) except -1:
    if end != NULL and s.at != end:
        wrong()
    return 0


cdef inline int make_room(Sink* out, Py_ssize_t n) except -1:
    cdef char* data
    if out.size + n > out.room:
        data = <char*>PyMem_Realloc(out.data, 2 * out.room + n + 512)
        if data == NULL:
            raise MemoryError
        out.data, out.room = data, 2 * out.room + n + 512
    return 0


cdef inline int put_varint(Sink* out, uint64_t n) except -1:
    make_room(out, 10)
    while n > 127:
        out.data[out.size] = <char>(n & 127 | 128)
        out.size += 1
        n >>= 7
    out.data[out.size] = <char>n
    out.size += 1
    return 0


cdef inline int put_piece(Sink* out, const char* data, Py_ssize_t n) except -1:
    put_varint(out, <uint64_t>n << 1)
    make_room(out, n)
    memcpy(out.data + out.size, data, n)
    out.size += n
    return 0


cdef inline int put_long(Sink* out, object x) except -1:
    cdef int64_t n = PyLong_AsLongLong(x)
    return put_varint(out, (<uint64_t>n << 1) ^ <uint64_t>(n >> 63))


cdef inline int put_bytes(Sink* out, object x) except -1:
    if not PyBytes_CheckExact(x):
        wrong()
    return put_piece(out, PyBytes_AS_STRING(x), PyBytes_GET_SIZE(x))


cdef inline int put_string(Sink* out, object x) except -1:
    cdef Py_ssize_t n
    cdef const char* data
    if not PyUnicode_Check(x):
        wrong()
    if not PyUnicode_IS_COMPACT_ASCII(x):
        return put_bytes(out, x.encode())  # PyUnicode_AsUTF8 would keep the encoded text in the string
    data = PyUnicode_AsUTF8AndSize(x, &n)
    return put_piece(out, data, n)


cdef inline int put_boolean(Sink* out, object x) except -1:
    make_room(out, 1)
    out.data[out.size] = 1 if x else 0
    out.size += 1
    return 0


cdef inline int put_float(Sink* out, double x) except -1:
    cdef float narrow = <float>x
    if isinf(narrow) and not isinf(x):
        wrong()
    make_room(out, 4)
    memcpy(out.data + out.size, &narrow, 4)
    out.size += 4
    return 0


cdef inline int put_double(Sink* out, double x) except -1:
    make_room(out, 8)
    memcpy(out.data + out.size, &x, 8)
    out.size += 8
    return 0
