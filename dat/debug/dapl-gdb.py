"""gdb commands that show an endpoint of a stopped program, or explain a return code. The libraries need no debug
information.

    (gdb) source /usr/share/dapl-rs/dapl-gdb.py
    (gdb) dapl ep HANDLE        state, handles, ports, attributes and counters of an endpoint
    (gdb) dapl code NUMBER      type and subtype of a return code

HANDLE is any expression, such as a variable of the program. The commands call dat_ep_query and dat_strerror in the
program, so the program must be alive (not a core file) and not stopped inside a call on the same object. Only for
programs of DAT 1.2 (libdat.so.1).
"""

import gdb

# Offsets of DAT_EP_PARAM and DAT_EP_ATTR of uDAPL 1.2 on LP64, as the headers have them.
EP_PARAM_SIZE = 192
EP_STATES = [
    "UNCONNECTED", "UNCONFIGURED_UNCONNECTED", "RESERVED", "UNCONFIGURED_RESERVED", "PASSIVE_CONNECTION_PENDING",
    "UNCONFIGURED_PASSIVE", "ACTIVE_CONNECTION_PENDING", "TENTATIVE_CONNECTION_PENDING", "UNCONFIGURED_TENTATIVE",
    "CONNECTED", "DISCONNECT_PENDING", "DISCONNECTED", "COMPLETION_PENDING",
]
HANDLES = [("ia", 0), ("pz", 48), ("recv evd", 56), ("request evd", 64), ("connect evd", 72), ("srq", 80)]
ATTRIBUTES = [
    ("max_message_size", 96, 8), ("max_rdma_size", 104, 8), ("max_recv_dtos", 124, 4), ("max_request_dtos", 128, 4),
    ("max_recv_iov", 132, 4), ("max_request_iov", 136, 4), ("max_rdma_read_in", 140, 4), ("max_rdma_read_out", 144, 4),
]
PROVIDER_COUNT, PROVIDER_LIST = 176, 184


def call(function, types, *arguments):
    """Calls a function of the program by its type, since the libraries may have no debug information."""
    values = ", ".join(str(argument) for argument in arguments)
    return gdb.parse_and_eval("((%s)%s)(%s)" % (types, function, values))


# Address of scratch memory in each process. Never freed: `free` may also be the name of a function in a Rust library.
SCRATCH = {}


def scratch():
    """Address of EP_PARAM_SIZE bytes in the program."""
    process = gdb.selected_inferior().pid
    if process not in SCRATCH:
        SCRATCH[process] = int(call("calloc", "void *(*)(unsigned long, unsigned long)", 1, EP_PARAM_SIZE))
    if SCRATCH[process] == 0:
        raise gdb.GdbError("the program has no memory for the answer")
    return SCRATCH[process]


def word(memory, offset, size):
    return int.from_bytes(memory[offset:offset + size], "little")


def read(address, size):
    return bytes(gdb.selected_inferior().read_memory(address, size))


def string(address):
    if address == 0:
        return "(null)"
    return gdb.Value(address).cast(gdb.lookup_type("char").pointer()).string(errors="replace")


def names_of(code):
    """Type and subtype of a return code, by dat_strerror."""
    places = scratch()
    shape = "unsigned int (*)(unsigned int, const char **, const char **)"
    call("dat_strerror", shape, code, "(const char **)%d" % places, "(const char **)%d" % (places + 8))
    memory = read(places, 16)
    return "%s %s" % (string(word(memory, 0, 8)), string(word(memory, 8, 8)))


def show_ep(handle):
    place = scratch()
    shape = "unsigned int (*)(void *, unsigned long, void *)"
    code = int(call("dat_ep_query", shape, "(void *)%d" % handle, 0x7FFFF7FF, "(void *)%d" % place)) & 0xFFFFFFFF
    if code != 0:
        raise gdb.GdbError("dat_ep_query returned %#x: %s" % (code, names_of(code)))
    memory = read(place, EP_PARAM_SIZE)
    state = word(memory, 8, 4)
    name = "DAT_EP_STATE_" + EP_STATES[state] if state < len(EP_STATES) else str(state)
    print("ep %#x: %s" % (handle, name))
    print("  " + ", ".join("%s %#x" % (what, word(memory, offset, 8)) for what, offset in HANDLES))
    print("  ports: local %#x, remote %#x" % (word(memory, 24, 8), word(memory, 40, 8)))
    for what, offset, size in ATTRIBUTES:
        print("  %-20s %d" % (what, word(memory, offset, size)))
    count, attributes = word(memory, PROVIDER_COUNT, 4), word(memory, PROVIDER_LIST, 8)
    if count == 0 or attributes == 0:
        return
    pairs = read(attributes, 16 * count)
    for index in range(count):
        print("  %-28s %s" % (string(word(pairs, 16 * index, 8)), string(word(pairs, 16 * index + 8, 8))))


class LanguageC:
    """Sets the language of expressions to C, also while the program is stopped in a frame of a Rust library."""

    def __enter__(self):
        self.language = gdb.parameter("language")
        gdb.execute("set language c", to_string=True)

    def __exit__(self, *_):
        gdb.execute("set language " + self.language, to_string=True)


class Dapl(gdb.Command):
    """Shows DAT objects: dapl ep HANDLE, dapl code NUMBER."""

    def __init__(self):
        super().__init__("dapl", gdb.COMMAND_DATA)

    def invoke(self, argument, from_tty):
        what, _, expression = argument.strip().partition(" ")
        if what not in ("ep", "code") or not expression:
            raise gdb.GdbError("usage: dapl ep HANDLE, or dapl code NUMBER")
        with LanguageC():
            value = int(gdb.parse_and_eval(expression).cast(gdb.lookup_type("unsigned long")))
            if what == "ep":
                show_ep(value)
            else:
                print(names_of(value & 0xFFFFFFFF))


Dapl()
