/*
 * half.h - the functions of half.c that both.c calls: one endpoint of a connection, over one version of DAT.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef HALF_H
#define HALF_H

#include <stdint.h>

/* Each function ends the program if a DAT call fails. */
struct half {
    void (*open)(const char *name);
    void (*listen)(uint64_t qual);          /* posts one receive, and creates a PSP */
    void (*connect)(uint64_t qual);         /* posts one receive; connects, but does not wait for the accept */
    void (*accept)(void);                   /* waits for a request, and accepts it */
    void (*established)(void);
    void (*send)(unsigned char byte);       /* sends a message in which each byte has this value */
    void (*receive)(unsigned char byte);    /* waits for such a message */
    void (*disconnect)(void);
    void (*disconnected)(void);
    void (*close)(void);                    /* closes the IA abruptly, which frees its objects */
    unsigned version;                       /* major */
};

/* Symbol name of the `struct half` that half.c exports, for dlsym. */
#define HALF "half"

#endif
