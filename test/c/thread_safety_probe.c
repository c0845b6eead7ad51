/*
 * Calls dat_ia_open for the interface adapter in its argument, and prints the return code. The macro requests the
 * thread safety for which the program is compiled (DAT_THREADSAFE).
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
