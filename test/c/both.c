/*
 * A process with libdat.so.1 and libdat2.so.2 over one provider library. Both versions open an adapter by the same
 * name, connect to each other in both directions, and exchange messages.
 *
 *     both ADAPTER HALF1 HALF2      the libraries made of half.c
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "half.h"

static const struct half *load(const char *path)
{
    void *image = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    void *half = image == NULL ? NULL : dlsym(image, HALF);
    if (half == NULL) {
        fprintf(stderr, "%s: %s\n", path, dlerror());
        exit(1);
    }
    return half;
}

static void meet(const struct half *server, const struct half *client, const char *name, uint64_t qual)
{
    server->open(name);
    client->open(name);
    server->listen(qual);
    client->connect(qual);
    server->accept();
    server->established();
    client->established();
    client->send(0x5a);
    server->receive(0x5a);
    server->send(0xa5);
    client->receive(0xa5);
    client->disconnect();
    client->disconnected();
    server->disconnected();
    client->close();
    server->close();
}

int main(int argc, char **argv)
{
    const struct half *old, *new;
    if (argc != 4)
        return 2;
    old = load(argv[2]);
    new = load(argv[3]);
    if (old->version != 1 || new->version != 2)
        return 2;
    for (uint64_t round = 0; round < 20; round++) {
        meet(old, new, argv[1], 0x0b070000 + 2 * round);
        meet(new, old, argv[1], 0x0b070001 + 2 * round);
    }
    puts("both: OK");
    return 0;
}
