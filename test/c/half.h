/*
 * half.h - interface of half.c for both.c: one version of DAT in a process that has two.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef HALF_H
#define HALF_H

#include <stdint.h>

/* Each call fails the program if DAT does. */
struct half {
    void (*open)(const char *name);
    void (*listen)(uint64_t qual);          /* one receive is posted, on an EP for one peer */
    void (*connect)(uint64_t qual);         /* to this machine; returns before the answer */
    void (*accept)(void);                   /* the request that has come */
    void (*established)(void);
    void (*send)(unsigned char byte);       /* a message of that byte */
    void (*receive)(unsigned char byte);    /* ... has come */
    void (*disconnect)(void);
    void (*disconnected)(void);
    void (*close)(void);                    /* frees all, and closes */
    unsigned version;                       /* major */
};

/* The name that half.c exports. */
#define HALF "half"

#endif
