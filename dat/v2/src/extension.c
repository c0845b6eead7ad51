/*
 * extension.c - dat_extension_op of libdat2.so.2, since Rust cannot define a function with variable arguments.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include <stdarg.h>
#include <stddef.h>

#include <dat2/udat.h>
#include <dat2/dat_ib_extensions.h>

/* Length of the asynchronous EVD in open_query. Only a failure of the adapter queues events there. */
enum { ASYNC_EVENTS = 8 };

/* In lib.rs: finds the provider of the handle and calls its handle_extendedop_func. */
extern DAT_RETURN dat2_extension_op(DAT_HANDLE handle, DAT_EXTENDED_OP operation, va_list arguments);

/*
 * dat_ib_open_query: opens an adapter by name and reads its attributes. The strings and arrays in them are valid until
 * dat_ib_close_query. Numbers of invalid parameters count from the name, the first parameter of the macro.
 */
static DAT_RETURN open_query(va_list arguments)
{
    DAT_NAME_PTR name = va_arg(arguments, DAT_NAME_PTR);
    DAT_HANDLE *opened = va_arg(arguments, DAT_HANDLE *);
    DAT_IA_ATTR_MASK ia_mask;
    DAT_IA_ATTR *ia_attr;
    DAT_PROVIDER_ATTR_MASK provider_mask;
    DAT_PROVIDER_ATTR *provider_attr;
    DAT_EVD_HANDLE async_evd = DAT_HANDLE_NULL;
    DAT_IA_HANDLE ia;
    DAT_RETURN result;

    if (name == NULL)
        return DAT_CLASS_ERROR | DAT_INVALID_PARAMETER | DAT_INVALID_ARG1;
    if (opened == NULL)
        return DAT_CLASS_ERROR | DAT_INVALID_PARAMETER | DAT_INVALID_ARG2;
    ia_mask = va_arg(arguments, DAT_IA_ATTR_MASK);
    ia_attr = va_arg(arguments, DAT_IA_ATTR *);
    provider_mask = va_arg(arguments, DAT_PROVIDER_ATTR_MASK);
    provider_attr = va_arg(arguments, DAT_PROVIDER_ATTR *);
    result = dat_ia_open(name, ASYNC_EVENTS, &async_evd, &ia);
    if (result != DAT_SUCCESS)
        return result;
    result = dat_ia_query(ia, NULL, ia_mask, ia_attr, provider_mask, provider_attr);
    if (result != DAT_SUCCESS) {
        /* The error of the query is returned, not the result of this close. */
        (void)dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG);
        return result;
    }
    *opened = ia;
    return DAT_SUCCESS;
}

DAT_RETURN dat_extension_op(DAT_HANDLE handle, DAT_EXTENDED_OP operation, ...)
{
    va_list arguments;
    DAT_RETURN result;

    /* The program creates no objects on an IA that it opened by dat_ib_open_query, so the graceful close succeeds. It
     * fails if `handle` is an IA with objects of the program. */
    if (operation == (DAT_EXTENDED_OP)DAT_IB_CLOSE_QUERY_OP)
        return dat_ia_close(handle, DAT_CLOSE_GRACEFUL_FLAG);
    va_start(arguments, operation);
    if (handle != DAT_HANDLE_NULL || operation < DAT_OPEN_EXTENSION_BASE)
        result = dat2_extension_op(handle, operation, arguments);
    else if (operation == (DAT_EXTENDED_OP)DAT_IB_OPEN_QUERY_OP)
        result = open_query(arguments);
    else
        /* Without a handle no provider can be found. */
        result = DAT_NOT_IMPLEMENTED;
    va_end(arguments);
    return result;
}
