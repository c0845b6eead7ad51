/*
 * The first program: opens an interface adapter, queries its attributes, closes it.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include <stdio.h>
#include <stdlib.h>

#include <dat/udat.h>

static void ok(const char *call, DAT_RETURN ret)
{
    const char *type, *subtype;
    if (ret == DAT_SUCCESS)
        return;
    dat_strerror(ret, &type, &subtype);
    fprintf(stderr, "%s: %s %s\n", call, type, subtype);
    exit(1);
}

int main(int argc, char **argv)
{
    DAT_IA_HANDLE ia;
    DAT_EVD_HANDLE errors = DAT_HANDLE_NULL; /* let the adapter make an EVD for asynchronous errors */
    DAT_IA_ATTR adapter;
    DAT_PROVIDER_ATTR provider;

    ok("dat_ia_open", dat_ia_open(argc > 1 ? argv[1] : "sm0", 8, &errors, &ia));
    ok("dat_ia_query", dat_ia_query(ia, NULL, DAT_IA_FIELD_ALL, &adapter, DAT_PROVIDER_FIELD_ALL, &provider));
    printf("%s: messages of up to %llu bytes\n", provider.provider_name, (unsigned long long)adapter.max_message_size);
    ok("dat_ia_close", dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG));
    return 0;
}
