/*
 * Opens libdat as some programs do, by dlopen with RTLD_LOCAL. Then opens the interface adapter that its argument
 * names.
 */
#include <dat/udat.h>

#include <dlfcn.h>
#include <stdio.h>

typedef DAT_RETURN (*open_function)(const DAT_NAME_PTR, DAT_COUNT, DAT_EVD_HANDLE *, DAT_IA_HANDLE *, DAT_UINT32,
                                    DAT_UINT32, DAT_BOOLEAN);

int main(int argc, char **argv)
{
    void *libdat = dlopen("libdat.so.1", RTLD_NOW | RTLD_LOCAL);
    open_function open_ia = libdat ? (open_function)dlsym(libdat, "dat_ia_openv") : NULL;
    DAT_EVD_HANDLE evd = NULL;
    DAT_IA_HANDLE ia;
    if (argc != 2 || !open_ia) {
        fprintf(stderr, "local_probe: %s\n", dlerror());
        return 2;
    }
    printf("open: 0x%08x\n", open_ia(argv[1], 1, &evd, &ia, 1, 2, DAT_FALSE));
    dlclose(libdat);
    printf("left\n");
    return 0;
}
