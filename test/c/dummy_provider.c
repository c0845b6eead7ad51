/*
 * A provider without a transport, for the registry's tests. Macros select its behaviour at compile time.
 *
 * It prints each init, fini, ia_open and ia_close on stdout. Unless HOOKED is defined, its objects are plain heap
 * memory, like those of a foreign provider.
 *
 *   NO_INIT            exports no dat_provider_init
 *   NO_FINI            exports no dat_provider_fini
 *   SILENT             does not register
 *   REGISTER_AS        registers this name instead of the one given
 *   REGISTER_MAJOR     registers this major version instead of the one given
 *   REGISTER_MINOR     registers this minor version instead of the one given
 *   TWICE              registers twice, and removes the registration twice in fini
 *   LEAVES_AT_EXIT     also removes the registration of this name in the library's destructor
 *   KEEPS              does not remove its registration in fini
 *   OPEN_CODE          ia_open returns this code and overwrites its outputs
 *   OPEN_NULL          ia_open returns success without an IA
 *   OPEN_DIES          ia_open ends the process by a signal
 *   OPEN_HANGS         ia_open does not return
 *   CLOSE_HANGS        ia_close does not return
 *   REFUSES_GRACEFUL   ia_close refuses a graceful close
 *   INIT_OPENS         init opens this name
 *   INIT_SLEEPS        init takes this many milliseconds
 *   INIT_AGAIN         init opens the name that libdat is opening
 *   CONSTRUCTOR_OPENS  the library's constructor opens this name
 *   HOOKED             keeps its objects in one array, and reports the array to libdat by libdat's private hook
 */
#include <dat/udat.h>
#include <dat/dat_registry.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct object {
    const DAT_PROVIDER *table;
    DAT_HANDLE_TYPE type;
    DAT_CONTEXT context;
    char rest[64 - sizeof(void *) - sizeof(DAT_HANDLE_TYPE) - sizeof(DAT_CONTEXT) - 4];
};

static DAT_PROVIDER table;
static struct object arena[64] __attribute__((aligned(64)));

static void say(const char *what, const DAT_PROVIDER_INFO *info, const char *params)
{
    printf("provider: %s %s %u.%u %s", what, info->ia_name, info->dapl_version_major, info->dapl_version_minor,
           info->is_thread_safe ? "threadsafe" : "nonthreadsafe");
    if (params)
        printf(" (%s)", params);
    printf("\n");
    fflush(stdout);
}

static struct object *make(DAT_HANDLE_TYPE type)
{
#ifdef HOOKED
    static size_t used;
    struct object *object = &arena[used++ % 64];
#else
    struct object *object = calloc(1, sizeof *object);
#endif
    object->table = &table;
    object->type = type;
    return object;
}

static DAT_RETURN open_ia(const DAT_NAME_PTR name, DAT_COUNT qlen, DAT_EVD_HANDLE *evd, DAT_IA_HANDLE *ia)
{
    printf("provider: open %s %d\n", name, (int)qlen);
    fflush(stdout);
    if (!evd)
        return DAT_CLASS_ERROR | DAT_INVALID_PARAMETER | DAT_INVALID_ARG3;
#ifdef OPEN_DIES
    abort();
#endif
#ifdef OPEN_HANGS
    for (;;)
        pause();
#endif
#ifdef OPEN_CODE
    *evd = (DAT_EVD_HANDLE)0x6661;
    *ia = (DAT_IA_HANDLE)0x6661;
    return OPEN_CODE;
#elif defined OPEN_NULL
    (void)ia;
    return DAT_SUCCESS;
#else
    if (!*evd)
        *evd = make(DAT_HANDLE_TYPE_EVD);
    *ia = make(DAT_HANDLE_TYPE_IA);
    return DAT_SUCCESS;
#endif
}

static DAT_RETURN close_ia(DAT_IA_HANDLE ia, DAT_CLOSE_FLAGS flags)
{
    printf("provider: close %u\n", (unsigned)flags);
    fflush(stdout);
#ifdef CLOSE_HANGS
    for (;;)
        pause();
#endif
    if (flags > 1)
        return DAT_CLASS_ERROR | DAT_INVALID_PARAMETER | DAT_INVALID_ARG2;
#ifdef REFUSES_GRACEFUL
    if (flags == DAT_CLOSE_GRACEFUL_FLAG)
        return DAT_CLASS_ERROR | DAT_INVALID_STATE | DAT_INVALID_STATE_IA_IN_USE;
#endif
#ifdef HOOKED
    ((struct object *)ia)->table = NULL;
#else
    free(ia);
#endif
    return DAT_SUCCESS;
}

static DAT_RETURN query_ia(DAT_IA_HANDLE ia, DAT_EVD_HANDLE *evd, DAT_IA_ATTR_MASK mask, DAT_IA_ATTR *attr,
                           DAT_PROVIDER_ATTR_MASK provider_mask, DAT_PROVIDER_ATTR *provider_attr)
{
    (void)mask, (void)attr, (void)provider_mask, (void)provider_attr;
    if (evd)
        *evd = ia;
    return DAT_SUCCESS;
}

static DAT_RETURN handle_type(DAT_HANDLE handle, DAT_HANDLE_TYPE *type)
{
    *type = ((struct object *)handle)->type;
    return DAT_SUCCESS;
}

static DAT_RETURN set_context(DAT_HANDLE handle, DAT_CONTEXT context)
{
    ((struct object *)handle)->context = context;
    return DAT_SUCCESS;
}

static DAT_RETURN get_context(DAT_HANDLE handle, DAT_CONTEXT *context)
{
    *context = ((struct object *)handle)->context;
    return DAT_SUCCESS;
}

static DAT_RETURN create_pz(DAT_IA_HANDLE ia, DAT_PZ_HANDLE *pz)
{
    (void)ia;
    *pz = make(DAT_HANDLE_TYPE_PZ);
    return DAT_SUCCESS;
}

static DAT_RETURN free_pz(DAT_PZ_HANDLE pz)
{
    (void)pz;
    return DAT_SUCCESS;
}

static DAT_RETURN wait_evd(DAT_EVD_HANDLE evd, DAT_TIMEOUT timeout, DAT_COUNT threshold, DAT_EVENT *event,
                           DAT_COUNT *more)
{
    (void)evd, (void)timeout, (void)threshold, (void)event, (void)more;
    for (;;)
        pause(); /* a cancellation point */
    return DAT_SUCCESS;
}

static void fill(void)
{
    table.device_name = "dummy";
    table.ia_open_func = open_ia;
    table.ia_close_func = close_ia;
    table.ia_query_func = query_ia;
    table.get_handle_type_func = handle_type;
    table.set_consumer_context_func = set_context;
    table.get_consumer_context_func = get_context;
    table.pz_create_func = create_pz;
    table.pz_free_func = free_pz;
    table.evd_wait_func = wait_evd;
}

static DAT_PROVIDER_INFO offered(const DAT_PROVIDER_INFO *info)
{
    DAT_PROVIDER_INFO offer = *info;
#ifdef REGISTER_AS
    strcpy(offer.ia_name, REGISTER_AS);
#endif
#ifdef REGISTER_MAJOR
    offer.dapl_version_major = REGISTER_MAJOR;
#endif
#ifdef REGISTER_MINOR
    offer.dapl_version_minor = REGISTER_MINOR;
#endif
    return offer;
}

#ifdef HOOKED
/* Same layout as in dat-abi's `hook`. */
struct handle_arena {
    uintptr_t base, len, stride;
};
struct hook {
    size_t size;
    int (*add_arena)(struct handle_arena);
    DAT_IA_HANDLE (*ia_number)(void *);
};
extern DAT_RETURN dats_get_ia_handle(DAT_IA_HANDLE, DAT_IA_HANDLE *);

static void ask_for_hook(void)
{
    struct hook *hook;
    if (dats_get_ia_handle((DAT_IA_HANDLE)0x6461706c5f727301ul, (DAT_IA_HANDLE *)&hook) == DAT_SUCCESS)
        printf("provider: add_arena %d\n",
               hook->add_arena((struct handle_arena){(uintptr_t)arena, sizeof arena, sizeof arena[0]}));
}
#endif

static inline void try_open(const char *when, const char *name)
{
    DAT_IA_HANDLE ia;
    DAT_EVD_HANDLE evd = NULL;
    DAT_RETURN code = dat_ia_openv((DAT_NAME_PTR)name, 1, &evd, &ia, 1, 2, DAT_FALSE);
    printf("provider: open of %s from %s: 0x%08x\n", name, when, code);
}

#ifdef CONSTRUCTOR_OPENS
__attribute__((constructor)) static void construct(void)
{
    try_open("constructor", CONSTRUCTOR_OPENS);
}
#endif

#ifdef LEAVES_AT_EXIT
__attribute__((destructor)) static void leave(void)
{
    DAT_PROVIDER_INFO offer = {.ia_name = LEAVES_AT_EXIT,
                               .dapl_version_major = DAT_VERSION_MAJOR,
                               .dapl_version_minor = DAT_VERSION_MINOR};
    printf("provider: remove at exit 0x%08x\n", dat_registry_remove_provider(&table, &offer));
    fflush(stdout);
}
#endif

#ifndef NO_INIT
void dat_provider_init(const DAT_PROVIDER_INFO *info, const char *params)
{
    say("init", info, params);
#ifdef HOOKED
    ask_for_hook();
#endif
#ifdef INIT_SLEEPS
    usleep(INIT_SLEEPS * 1000);
#endif
#ifdef INIT_OPENS
    try_open("init", INIT_OPENS);
#endif
#ifdef INIT_AGAIN
    try_open("init", info->ia_name);
#endif
#ifndef SILENT
    fill();
    DAT_PROVIDER_INFO offer = offered(info);
    DAT_RETURN code = dat_registry_add_provider(&table, &offer);
    if (code != DAT_SUCCESS)
        printf("provider: add 0x%08x\n", code);
#ifdef TWICE
    printf("provider: add again 0x%08x\n", dat_registry_add_provider(&table, &offer));
#endif
#endif
}
#endif

#ifndef NO_FINI
void dat_provider_fini(const DAT_PROVIDER_INFO *info)
{
    say("fini", info, NULL);
#ifndef KEEPS
    DAT_PROVIDER_INFO offer = offered(info);
    DAT_RETURN code = dat_registry_remove_provider(&table, &offer);
    if (code != DAT_SUCCESS)
        printf("provider: remove 0x%08x\n", code);
#ifdef TWICE
    printf("provider: remove again 0x%08x\n", dat_registry_remove_provider(&table, &offer));
#endif
#endif
}
#endif
