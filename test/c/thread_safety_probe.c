/*
 * Opens the interface adapter that its argument names by dat_ia_open, which requests the thread safety that the
 * program is compiled for.
 */
#include <dat/udat.h>

#include <stdio.h>

int main(int argc, char **argv)
{
    DAT_EVD_HANDLE evd = DAT_HANDLE_NULL;
    DAT_IA_HANDLE ia;
    const char *type, *subtype;
    if (argc != 2)
        return 2;
    dat_strerror(dat_ia_open(argv[1], 8, &evd, &ia), &type, &subtype);
    printf("open: %s %s\n", type, subtype);
    return 0;
}
