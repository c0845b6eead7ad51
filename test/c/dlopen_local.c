/* Opens libdat as MPI libraries do: at run time, with its symbols visible only to the plug-in that opened it. The
 * provider must then find libdat without the help of the program.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include <dat/udat.h>

static void *find(void *library, const char *name)
{
    void *address = dlsym(library, name);
    if (!address) {
        fprintf(stderr, "%s: %s\n", name, dlerror());
        exit(1);
    }
    return address;
}

/* POSIX lets dlsym return a function pointer as a data pointer. ISO C has no such cast, so the bytes are copied. */
#define FIND(library, name)                       \
    __extension__({                               \
        union {                                   \
            void *data;                           \
            __typeof__(&name) function;           \
        } both = { .data = find(library, #name) }; \
        both.function;                            \
    })

#define OK(call)                                                                                   \
    do {                                                                                           \
        DAT_RETURN ret = (call);                                                                   \
        if (ret != DAT_SUCCESS) {                                                                  \
            const char *type, *subtype;                                                            \
            FIND(library, dat_strerror)(ret, &type, &subtype);                                     \
            fprintf(stderr, "%s: %s %s\n", #call, type, subtype);                                  \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

int main(int argc, char **argv)
{
    char *name = argc > 1 ? argv[1] : "sm0";
    DAT_IA_HANDLE ia;
    DAT_EVD_HANDLE errors = DAT_HANDLE_NULL;
    DAT_IA_ATTR adapter;
    DAT_PROVIDER_ATTR provider;
    DAT_PZ_HANDLE pz;

    void *library = dlopen("libdat.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    if (dlsym(RTLD_DEFAULT, "dat_ia_openv")) {
        fprintf(stderr, "dat_ia_openv is visible globally: the test is invalid\n");
        return 1;
    }
    OK(FIND(library, dat_ia_openv)(name, 8, &errors, &ia, DAT_VERSION_MAJOR, DAT_VERSION_MINOR, DAT_THREADSAFE));
    OK(FIND(library, dat_ia_query)(ia, NULL, DAT_IA_FIELD_ALL, &adapter, DAT_PROVIDER_FIELD_ALL, &provider));
    OK(FIND(library, dat_pz_create)(ia, &pz));
    OK(FIND(library, dat_pz_free)(pz));
    OK(FIND(library, dat_ia_close)(ia, DAT_CLOSE_GRACEFUL_FLAG));
    printf("dlopen_local: OK, %s\n", provider.provider_name);
    dlclose(library);
    return 0;
}
