/*
 * shared.c - memory that processes share, registered under one name in each of them.
 *
 *   shared ia
 *
 * Children register the same memory, in any order and more than once. Other memory, or another length, is refused under
 * the same name. Two of three children are killed, which ends their registrations. The name is free when no process has
 * the memory registered any more.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { LENGTH = 1 << 16, CHILDREN = 3 };

static const DAT_RETURN OTHER_LENGTH = DAT_CLASS_ERROR | DAT_INVALID_PARAMETER | DAT_INVALID_ARG4;

static char *region;
static char name[DAT_LMR_COOKIE_SIZE] = "the middle has a \0 in it, the end counts";
static DAT_IA_HANDLE ia;
static DAT_PZ_HANDLE pz;
static DAT_EVD_HANDLE async;

static void begin(char *adapter)
{
    async = DAT_HANDLE_NULL;
    OK(dat_ia_open(adapter, 8, &async, &ia));
    OK(dat_pz_create(ia, &pz));
}

static void end(void)
{
    OK(dat_pz_free(pz));
    OK(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG));
}

static DAT_RETURN share(void *at, size_t length, DAT_LMR_HANDLE *lmr)
{
    DAT_REGION_DESCRIPTION description = { .for_shared_memory = { .virtual_address = at, .shared_memory_id = &name } };
    DAT_LMR_CONTEXT context;
    return dat_lmr_create(ia, DAT_MEM_TYPE_SHARED_VIRTUAL, description, length, pz, DAT_MEM_PRIV_ALL_FLAG, lmr, &context,
                          NULL, NULL, NULL);
}

static void one_byte(int from)
{
    char byte;
    EXPECT(read(from, &byte, 1) == 1);
}

/* Registers the memory twice, frees one registration, reports to the parent, and waits until the parent kills it or
 * sends a byte. */
static void child(char *adapter, int ready, int go)
{
    DAT_LMR_HANDLE lmrs[2];
    begin(adapter);
    for (int i = 0; i < 2; i++)
        OK(share(region, LENGTH, &lmrs[i]));
    OK(dat_lmr_free(lmrs[0]));
    EXPECT(write(ready, "r", 1) == 1);
    one_byte(go);
    OK(dat_lmr_free(lmrs[1]));
    end();
}

static void check_result(void)
{
    static char mine[LENGTH];
    char cookie[DAT_LMR_COOKIE_SIZE];
    DAT_LMR_HANDLE lmr = DAT_HANDLE_NULL;
    DAT_LMR_PARAM shown;

    EXPECT(share(mine, LENGTH, &lmr) == (DAT_CLASS_ERROR | DAT_INVALID_STATE));
    EXPECT(share(region, LENGTH / 2, &lmr) == OTHER_LENGTH);
    EXPECT(lmr == DAT_HANDLE_NULL);
    OK(share(region, LENGTH, &lmr));
    memcpy(cookie, name, sizeof cookie);
    memset(name, 0, sizeof name);
    OK(dat_lmr_query(lmr, DAT_LMR_FIELD_ALL, &shown));
    EXPECT(shown.mem_type == DAT_MEM_TYPE_SHARED_VIRTUAL && shown.length == LENGTH);
    EXPECT(shown.region_desc.for_shared_memory.virtual_address == region);
    EXPECT(memcmp(shown.region_desc.for_shared_memory.shared_memory_id, cookie, sizeof cookie) == 0);
    memcpy(name, cookie, sizeof name);
    OK(dat_lmr_free(lmr));
}

int main(int argc, char **argv)
{
    char *adapter = argc > 1 ? argv[1] : "sm0";
    int ready[2], go[2], status;
    pid_t children[CHILDREN];
    DAT_LMR_HANDLE lmr;

    region = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT(region != MAP_FAILED && pipe(ready) == 0 && pipe(go) == 0);
    for (int i = 0; i < CHILDREN; i++) {
        children[i] = fork();
        EXPECT(children[i] >= 0);
        if (children[i] == 0) {
            child(adapter, ready[1], go[0]);
            return 0;
        }
    }
    for (int i = 0; i < CHILDREN; i++)
        one_byte(ready[0]);
    begin(adapter);
    check_result();

    OK(kill(children[0], SIGKILL));
    EXPECT(waitpid(children[0], &status, 0) == children[0] && WIFSIGNALED(status));
    EXPECT(share(region, LENGTH / 2, &lmr) == OTHER_LENGTH); /* other processes still have it registered */
    EXPECT(write(go[1], "g", 1) == 1);
    EXPECT(wait(&status) > 0 && status == 0);
    EXPECT(share(region, LENGTH / 2, &lmr) == OTHER_LENGTH); /* one process still has it registered */
    for (int i = 1; i < CHILDREN; i++)
        kill(children[i], SIGKILL);
    EXPECT(wait(&status) > 0);
    OK(share(region, LENGTH / 2, &lmr)); /* no process has it registered */
    OK(dat_lmr_free(lmr));
    end();
    printf("shared: OK\n");
    return 0;
}
