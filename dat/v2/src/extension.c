/*
 * extension.c - dat_extension_op of libdat2.so.2, since Rust cannot define a function with variable arguments.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include <stdarg.h>

#include <dat2/udat.h>

/* In lib.rs: finds the provider of the handle and calls its handle_extendedop_func. */
extern DAT_RETURN dat2_extension_op(DAT_HANDLE handle, DAT_EXTENDED_OP operation, va_list arguments);

DAT_RETURN dat_extension_op(DAT_HANDLE handle, DAT_EXTENDED_OP operation, ...)
{
    va_list arguments;
    DAT_RETURN result;

    /* Queries without an open IA have no handle to find a provider by. */
    if (operation >= DAT_OPEN_EXTENSION_BASE && handle == DAT_HANDLE_NULL)
        return DAT_NOT_IMPLEMENTED;
    va_start(arguments, operation);
    result = dat2_extension_op(handle, operation, arguments);
    va_end(arguments);
    return result;
}
