/*
 * Runs the commands in its arguments, most of them registry calls, and prints the results. Each test case runs it in a
 * new process, because libdat reads files and the environment once. IAs are numbered from 0 in the order of `open`.
 *
 *   open NAME MAJOR MINOR SAFE   dat_ia_openv; remembers the IA
 *   open-other NAME              opens and closes NAME through the libdat of the other version
 *   close N FLAGS                dat_ia_close of IA N
 *   close-pointer N FLAGS        the same with the provider's pointer as handle
 *   list COUNT                   dat_registry_list_providers with space for COUNT providers
 *   set NAME VALUE               setenv
 *   self NAME MAJOR MINOR SAFE   registers this program as a provider
 *   unself NAME MAJOR MINOR SAFE removes that registration
 *   remove NAME MAJOR MINOR SAFE removes a registration
 *   bad-handles                  the calls of 1.2 that take a handle first, except dat_lmr_create, and in 2.0
 *                                dat_extension_op, with invalid handles: prints only unexpected results, then
 *                                "survived"
 *   bad-arguments                null and malformed arguments of open, add, remove, list, strerror and the translation
 *                                of IA handles
 *   objects N                    context, type and translation on IA N and a PZ of it
 *   cancel N                     cancels a thread that waits on the async EVD of IA N
 *   fork-open NAME               opens and closes NAME in 40 children, while other threads keep the registry busy
 *   hook N                       results of the private hook: the consumer's handle of IA N, the last refusal
 *   secure                       whether the process has more privileges than its user
 *   threads COUNT NAME...        opens and closes the names in turn, COUNT times in each of 8 threads
 */
#include <dat/udat.h>
#include <dat/dat_registry.h>

#if DAT_VERSION_MAJOR == 2
/* In 2.0 the call has parameters for the LMR and for its address type. */
#define dat_rmr_bind(rmr, triplet, privileges, ...) \
    dat_rmr_bind(rmr, DAT_HANDLE_NULL, triplet, privileges, DAT_VA_TYPE_VA, __VA_ARGS__)
#endif

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/wait.h>
#include <unistd.h>

extern DAT_RETURN dats_get_ia_handle(DAT_IA_HANDLE, DAT_IA_HANDLE *);

static DAT_IA_HANDLE ias[128];
static DAT_EVD_HANDLE evds[128];
static int opened;
static char **argument;

static char *next(void)
{
    if (!*argument) {
        fprintf(stderr, "registry_probe: the last command lacks an argument\n");
        exit(2);
    }
    return *argument++;
}

static int number(void)
{
    return (int)strtol(next(), NULL, 0);
}

static void show(const char *what, DAT_RETURN code)
{
    const char *major = "unset", *minor = "unset";
    dat_strerror(code, &major, &minor);
    printf("%s: 0x%08x %s %s\n", what, code, major, minor);
    fflush(stdout);
}

static DAT_PROVIDER_INFO info_from_arguments(void)
{
    DAT_PROVIDER_INFO info;
    memset(&info, 0, sizeof info);
    strncpy(info.ia_name, next(), sizeof info.ia_name - 1);
    info.dapl_version_major = (DAT_UINT32)number();
    info.dapl_version_minor = (DAT_UINT32)number();
    info.is_thread_safe = (DAT_BOOLEAN)number();
    return info;
}

static void do_open(void)
{
    DAT_PROVIDER_INFO ask = info_from_arguments();
    DAT_IA_HANDLE ia = (DAT_IA_HANDLE)0x5555;
    DAT_EVD_HANDLE evd = NULL;
    DAT_RETURN code = dat_ia_openv(ask.ia_name, 8, &evd, &ia, ask.dapl_version_major, ask.dapl_version_minor,
                                   ask.is_thread_safe);
    show("open", code);
    if (code == DAT_SUCCESS) {
        printf("ia %lu\n", (unsigned long)(uintptr_t)ia);
        evds[opened] = evd;
        ias[opened++] = ia;
    } else {
        printf("left ia %p evd %p\n", ia, evd);
    }
}

/* Opens and closes a name through the libdat of the other version. The calls have the same types in both versions. */
static void do_open_other(void)
{
    enum { MAJOR = 3 - DAT_VERSION_MAJOR, MINOR = MAJOR == 1 ? 2 : 0 };
    void *library = dlopen(MAJOR == 1 ? "libdat.so.1" : "libdat2.so.2", RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    DAT_RETURN (*open)(const DAT_NAME_PTR, DAT_COUNT, DAT_EVD_HANDLE *, DAT_IA_HANDLE *, DAT_UINT32, DAT_UINT32,
                       DAT_BOOLEAN);
    DAT_RETURN (*close)(DAT_IA_HANDLE, DAT_CLOSE_FLAGS);
    DAT_IA_HANDLE ia = NULL;
    DAT_EVD_HANDLE evd = NULL;
    char *name = next();
    if (library == NULL) {
        fprintf(stderr, "registry_probe: the other libdat is not loaded\n");
        exit(2);
    }
    *(void **)&open = dlsym(library, "dat_ia_openv");
    *(void **)&close = dlsym(library, "dat_ia_close");
    DAT_RETURN code = open(name, 8, &evd, &ia, MAJOR, MINOR, DAT_FALSE);
    printf("open other: 0x%08x\n", code);
    if (code == DAT_SUCCESS)
        printf("close other: 0x%08x\n", close(ia, DAT_CLOSE_ABRUPT_FLAG));
}

static void do_list(void)
{
    enum { MAX_PROVIDERS = 600 };
    static DAT_PROVIDER_INFO infos[MAX_PROVIDERS];
    static DAT_PROVIDER_INFO *list[MAX_PROVIDERS];
    DAT_COUNT space = number(), count = -7;
    for (int i = 0; i < MAX_PROVIDERS; i++)
        list[i] = &infos[i];
    show("list", dat_registry_list_providers(space, &count, list));
    printf("count %d\n", (int)count);
    for (int i = 0; i < count && i < space; i++)
        printf("- %s %u.%u %u\n", infos[i].ia_name, infos[i].dapl_version_major, infos[i].dapl_version_minor,
               infos[i].is_thread_safe);
}

static DAT_PROVIDER own;

static DAT_RETURN own_open(const DAT_NAME_PTR name, DAT_COUNT qlen, DAT_EVD_HANDLE *evd, DAT_IA_HANDLE *ia)
{
    static struct {
        DAT_PROVIDER *table;
    } object;
    (void)name, (void)qlen, (void)evd;
    object.table = &own;
    *ia = &object;
    return DAT_SUCCESS;
}

static DAT_RETURN own_close(DAT_IA_HANDLE ia, DAT_CLOSE_FLAGS flags)
{
    (void)ia, (void)flags;
    return DAT_SUCCESS;
}

static DAT_RETURN own_query(DAT_IA_HANDLE ia, DAT_EVD_HANDLE *evd, DAT_IA_ATTR_MASK mask, DAT_IA_ATTR *attr,
                            DAT_PROVIDER_ATTR_MASK provider_mask, DAT_PROVIDER_ATTR *provider_attr)
{
    (void)ia, (void)evd, (void)mask, (void)attr, (void)provider_mask, (void)provider_attr;
    return DAT_SUCCESS;
}

static void fill_own(void)
{
    own.device_name = "self";
    own.ia_open_func = own_open;
    own.ia_close_func = own_close;
    own.ia_query_func = own_query;
}

static void do_bad_handles(void)
{
    static uint64_t heap[64] __attribute__((aligned(64)));
    DAT_HANDLE local = &local;
    DAT_HANDLE nonsense[] = {NULL,
                             (DAT_HANDLE)1,
                             (DAT_HANDLE)2,
                             (DAT_HANDLE)77,
                             (DAT_HANDLE)65535,
                             (DAT_HANDLE)65536,
                             (DAT_HANDLE)0x10001,
                             (DAT_HANDLE)0x7fffffffffffful,
                             (DAT_HANDLE)UINTPTR_MAX,
                             (DAT_HANDLE)(UINTPTR_MAX - 7),
                             (DAT_HANDLE)0xdeadbeefdeadbee8ul,
                             heap,
                             &heap[1],
                             &local,
                             (DAT_HANDLE)(uintptr_t)do_bad_handles};
    static char space[4096];
    void *r = space;
    DAT_CONTEXT context = {.as_64 = 0};
    DAT_DTO_COOKIE cookie = {.as_64 = 0};
    for (size_t i = 0; i < sizeof nonsense / sizeof *nonsense; i++) {
        DAT_HANDLE h = nonsense[i];
        if (opened && (uintptr_t)h < 65536)
            h = NULL; /* the number may be the handle of an open IA */
#define IS(sub, call)                                                                                                  \
    do {                                                                                                               \
        DAT_RETURN code = call;                                                                                        \
        if (code != (DAT_RETURN)(DAT_CLASS_ERROR | DAT_INVALID_HANDLE | (sub)))                                        \
            printf("%s with %p: 0x%08x\n", #call, h, code);                                                            \
    } while (0)
        IS(DAT_INVALID_HANDLE_IA, dat_ia_query(h, NULL, 0, NULL, 0, NULL));
        IS(DAT_INVALID_HANDLE_IA, dat_ia_close(h, DAT_CLOSE_ABRUPT_FLAG));
        IS(DAT_INVALID_HANDLE_IA, dat_ep_create(h, NULL, NULL, NULL, NULL, NULL, r));
        IS(DAT_INVALID_HANDLE_IA, dat_ep_create_with_srq(h, NULL, NULL, NULL, NULL, NULL, NULL, r));
        IS(DAT_INVALID_HANDLE_IA, dat_evd_create(h, 1, NULL, DAT_EVD_DTO_FLAG, r));
        IS(DAT_INVALID_HANDLE_IA, dat_cno_create(h, DAT_OS_WAIT_PROXY_AGENT_NULL, r));
        IS(DAT_INVALID_HANDLE_IA, dat_pz_create(h, r));
        IS(DAT_INVALID_HANDLE_IA, dat_psp_create(h, 1, NULL, DAT_PSP_CONSUMER_FLAG, r));
        IS(DAT_INVALID_HANDLE_IA, dat_psp_create_any(h, r, NULL, DAT_PSP_CONSUMER_FLAG, r));
        IS(DAT_INVALID_HANDLE_IA, dat_rsp_create(h, 1, NULL, NULL, r));
        IS(DAT_INVALID_HANDLE_IA, dat_srq_create(h, NULL, r, r));
        IS(DAT_INVALID_HANDLE_IA, dat_lmr_sync_rdma_read(h, r, 1));
        IS(DAT_INVALID_HANDLE_IA, dat_lmr_sync_rdma_write(h, r, 1));
        IS(DAT_INVALID_HANDLE_IA, dats_get_ia_handle(h, r));
        IS(DAT_INVALID_HANDLE1, dat_set_consumer_context(h, context));
        IS(DAT_INVALID_HANDLE1, dat_get_consumer_context(h, &context));
        IS(DAT_INVALID_HANDLE1, dat_get_handle_type(h, r));
        IS(DAT_INVALID_HANDLE_EP, dat_ep_query(h, 0, r));
        IS(DAT_INVALID_HANDLE_EP, dat_ep_modify(h, 0, r));
        IS(DAT_INVALID_HANDLE_EP, dat_ep_connect(h, r, 1, 1, 0, NULL, DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG));
        IS(DAT_INVALID_HANDLE_EP, dat_ep_dup_connect(h, h, 1, 0, NULL, DAT_QOS_BEST_EFFORT));
        IS(DAT_INVALID_HANDLE_EP, dat_ep_disconnect(h, DAT_CLOSE_DEFAULT));
        IS(DAT_INVALID_HANDLE_EP, dat_ep_post_send(h, 0, NULL, cookie, DAT_COMPLETION_DEFAULT_FLAG));
        IS(DAT_INVALID_HANDLE_EP, dat_ep_post_recv(h, 0, NULL, cookie, DAT_COMPLETION_DEFAULT_FLAG));
        IS(DAT_INVALID_HANDLE_EP, dat_ep_post_rdma_read(h, 0, NULL, cookie, r, DAT_COMPLETION_DEFAULT_FLAG));
        IS(DAT_INVALID_HANDLE_EP, dat_ep_post_rdma_write(h, 0, NULL, cookie, r, DAT_COMPLETION_DEFAULT_FLAG));
        IS(DAT_INVALID_HANDLE_EP, dat_ep_get_status(h, r, r, r));
        IS(DAT_INVALID_HANDLE_EP, dat_ep_recv_query(h, r, r));
        IS(DAT_INVALID_HANDLE_EP, dat_ep_set_watermark(h, 1, 1));
        IS(DAT_INVALID_HANDLE_EP, dat_ep_reset(h));
        IS(DAT_INVALID_HANDLE_EP, dat_ep_free(h));
        IS(DAT_INVALID_HANDLE_EVD_REQUEST, dat_evd_query(h, DAT_EVD_FIELD_ALL, r));
        IS(DAT_INVALID_HANDLE_EVD_REQUEST, dat_evd_resize(h, 1));
        IS(DAT_INVALID_HANDLE_EVD_REQUEST, dat_evd_modify_cno(h, NULL));
        IS(DAT_INVALID_HANDLE_EVD_REQUEST, dat_evd_enable(h));
        IS(DAT_INVALID_HANDLE_EVD_REQUEST, dat_evd_disable(h));
        IS(DAT_INVALID_HANDLE_EVD_REQUEST, dat_evd_wait(h, 0, 1, r, r));
        IS(DAT_INVALID_HANDLE_EVD_REQUEST, dat_evd_dequeue(h, r));
        IS(DAT_INVALID_HANDLE_EVD_REQUEST, dat_evd_post_se(h, r));
        IS(DAT_INVALID_HANDLE_EVD_REQUEST, dat_evd_set_unwaitable(h));
        IS(DAT_INVALID_HANDLE_EVD_REQUEST, dat_evd_clear_unwaitable(h));
        IS(DAT_INVALID_HANDLE_EVD_REQUEST, dat_evd_free(h));
        IS(DAT_INVALID_HANDLE_CNO, dat_cno_query(h, DAT_CNO_FIELD_ALL, r));
        IS(DAT_INVALID_HANDLE_CNO, dat_cno_modify_agent(h, DAT_OS_WAIT_PROXY_AGENT_NULL));
        IS(DAT_INVALID_HANDLE_CNO, dat_cno_wait(h, 0, r));
        IS(DAT_INVALID_HANDLE_CNO, dat_cno_free(h));
        IS(DAT_INVALID_HANDLE_CR, dat_cr_query(h, DAT_CR_FIELD_ALL, r));
        IS(DAT_INVALID_HANDLE_CR, dat_cr_accept(h, NULL, 0, NULL));
        IS(DAT_INVALID_HANDLE_CR, dat_cr_reject(h));
        IS(DAT_INVALID_HANDLE_CR, dat_cr_handoff(h, 1));
        IS(DAT_INVALID_HANDLE_PSP, dat_psp_query(h, DAT_PSP_FIELD_ALL, r));
        IS(DAT_INVALID_HANDLE_PSP, dat_psp_free(h));
        IS(DAT_INVALID_HANDLE_RSP, dat_rsp_query(h, DAT_RSP_FIELD_ALL, r));
        IS(DAT_INVALID_HANDLE_RSP, dat_rsp_free(h));
        IS(DAT_INVALID_HANDLE_PZ, dat_pz_query(h, DAT_PZ_FIELD_ALL, r));
        IS(DAT_INVALID_HANDLE_PZ, dat_pz_free(h));
        IS(DAT_INVALID_HANDLE_LMR, dat_lmr_query(h, DAT_LMR_FIELD_ALL, r));
        IS(DAT_INVALID_HANDLE_LMR, dat_lmr_free(h));
        IS(DAT_INVALID_HANDLE_PZ, dat_rmr_create(h, r));
        IS(DAT_INVALID_HANDLE_RMR, dat_rmr_query(h, DAT_RMR_FIELD_ALL, r));
        IS(DAT_INVALID_HANDLE_RMR, dat_rmr_bind(h, r, DAT_MEM_PRIV_NONE_FLAG, h, cookie, DAT_COMPLETION_DEFAULT_FLAG, r));
        IS(DAT_INVALID_HANDLE_RMR, dat_rmr_free(h));
        IS(DAT_INVALID_HANDLE_SRQ, dat_srq_query(h, DAT_SRQ_FIELD_ALL, r));
        IS(DAT_INVALID_HANDLE_SRQ, dat_srq_resize(h, 1));
        IS(DAT_INVALID_HANDLE_SRQ, dat_srq_set_lw(h, 1));
        IS(DAT_INVALID_HANDLE_SRQ, dat_srq_post_recv(h, 0, NULL, cookie));
        IS(DAT_INVALID_HANDLE_SRQ, dat_srq_free(h));
#if DAT_VERSION_MAJOR == 2
        IS(DAT_INVALID_HANDLE1, dat_extension_op(h, 1, r));
#endif
#undef IS
    }
    printf("survived\n");
}

static void do_bad_arguments(void)
{
    char endless[300];
    DAT_IA_HANDLE ia;
    DAT_EVD_HANDLE evd = NULL;
    DAT_PROVIDER_INFO info;
    DAT_COUNT count = -7;
    DAT_PROVIDER_INFO *holes[3] = {&info, NULL, NULL};
    const char *text;
    memset(endless, 'a', sizeof endless);
    show("open null name", dat_ia_openv(NULL, 1, &evd, &ia, 1, 2, DAT_FALSE));
    show("open endless name", dat_ia_openv(endless, 1, &evd, &ia, 1, 2, DAT_FALSE));
    endless[256] = 0;
    show("open 256 bytes", dat_ia_openv(endless, 1, &evd, &ia, 1, 2, DAT_FALSE));
    show("open null ia", dat_ia_openv("x", 1, &evd, NULL, 1, 2, DAT_FALSE));
    memset(&info, 0, sizeof info);
    strcpy(info.ia_name, "self");
    show("add null table", dat_registry_add_provider(NULL, &info));
    fill_own();
    show("add null info", dat_registry_add_provider(&own, NULL));
    own.ia_close_func = NULL;
    show("add without close", dat_registry_add_provider(&own, &info));
    fill_own();
    memset(info.ia_name, 'a', sizeof info.ia_name);
    show("add endless name", dat_registry_add_provider(&own, &info));
    show("remove null table", dat_registry_remove_provider(NULL, &info));
    show("remove null info", dat_registry_remove_provider(&own, NULL));
    show("list null count", dat_registry_list_providers(1, NULL, holes));
    show("list null list", dat_registry_list_providers(1, &count, NULL));
    printf("count %d\n", (int)count);
    show("list negative", dat_registry_list_providers(-1, &count, holes));
    printf("count %d\n", (int)count);
    show("list size query", dat_registry_list_providers(0, &count, NULL));
    printf("count %d\n", (int)count);
    count = -7;
    show("list with a hole", dat_registry_list_providers(2, &count, holes));
    printf("count %d name %.3s\n", (int)count, info.ia_name);
    show("strerror both null", dat_strerror(0, NULL, NULL));
    show("strerror null major", dat_strerror(DAT_QUEUE_EMPTY, NULL, &text));
    show("strerror null minor", dat_strerror(DAT_QUEUE_EMPTY, &text, NULL));
    show("strerror unknown", dat_strerror(0x80200000, &text, NULL));
    show("translate into null", dats_get_ia_handle((DAT_IA_HANDLE)1, NULL));
}

static void do_objects(void)
{
    DAT_IA_HANDLE ia = ias[number()], pointer = NULL, again = NULL;
    DAT_PZ_HANDLE pz = NULL;
    DAT_CONTEXT set = {.as_64 = 0x1122334455667788ull}, got = {.as_64 = 0};
    DAT_HANDLE_TYPE type = (DAT_HANDLE_TYPE)99;
    show("translate", dats_get_ia_handle(ia, &pointer));
    show("translate again", dats_get_ia_handle(pointer, &again));
    /* 1.2 translates a provider's handle to itself, 2.0 to the IA number. */
    printf("same %d number %d\n", again == (DAT_VERSION_MAJOR == 2 ? ia : pointer), (uintptr_t)ia < 65536);
    show("query by pointer", dat_ia_query(pointer, NULL, 0, NULL, 0, NULL));
    show("set context", dat_set_consumer_context(ia, set));
    show("get context", dat_get_consumer_context(pointer, &got));
    show("ia type", dat_get_handle_type(ia, &type));
    printf("type %d context %d\n", (int)type, got.as_64 == set.as_64);
    show("pz create", dat_pz_create(ia, &pz));
    show("pz type", dat_get_handle_type(pz, &type));
    printf("type %d\n", (int)type);
    show("pz without a slot", dat_pz_query(pz, DAT_PZ_FIELD_ALL, NULL));
    show("pz free", dat_pz_free(pz));
    show("pz as ia", dat_ia_query(pz, NULL, 0, NULL, 0, NULL));
}

static void do_hook(void)
{
    /* Same layout as in dat-abi's `hook`. */
    struct {
        size_t size;
        void *add_arena;
        DAT_IA_HANDLE (*ia_number)(void *);
        size_t (*last_refusal)(char *, size_t);
    } *hook = NULL;
    DAT_IA_HANDLE ia = ias[number()], pointer = NULL;
    char text[64] = "untouched", cut[8] = "xxxxxxx";
    show("hook", dats_get_ia_handle((DAT_IA_HANDLE)0x6461706c5f727301ul, (DAT_IA_HANDLE *)&hook));
    show("other version", dats_get_ia_handle((DAT_IA_HANDLE)0x6461706c5f727302ul, &pointer));
    dats_get_ia_handle(ia, &pointer);
    printf("number %d unknown %p\n", hook->ia_number(pointer) == ia, hook->ia_number(&hook));
    printf("length %zu nothing %zu\n", hook->last_refusal(text, sizeof text), hook->last_refusal(NULL, 0));
    hook->last_refusal(cut, sizeof cut);
    printf("%s\n%s\n", text, cut);
}

static void *wait_for_ever(void *evd)
{
    DAT_EVENT event;
    DAT_COUNT more;
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
    dat_evd_wait(evd, DAT_TIMEOUT_INFINITE, 1, &event, &more);
    return NULL;
}

static void do_cancel(void)
{
    pthread_t thread;
    void *result = NULL;
    pthread_create(&thread, NULL, wait_for_ever, evds[number()]);
    usleep(50000); /* probably asleep here; a thread cancelled before it sleeps must also end */
    pthread_cancel(thread);
    pthread_join(thread, &result);
    printf("cancelled %d\n", result == PTHREAD_CANCELED);
}

static atomic_int stop;
static char *names[16];
static int names_count;
static atomic_int failures;

static void open_and_close(const char *name)
{
    DAT_IA_HANDLE ia = NULL;
    DAT_EVD_HANDLE evd = NULL;
    DAT_RETURN code = dat_ia_openv((DAT_NAME_PTR)name, 1, &evd, &ia, 1, 2, DAT_FALSE);
    if (code == DAT_SUCCESS)
        code = dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG);
    if (code != DAT_SUCCESS && !atomic_fetch_add(&failures, 1))
        show("failure", code);
}

static void *keep_busy(void *count)
{
    for (int i = 0; count ? i < *(int *)count : !stop; i++)
        open_and_close(names[i % names_count]);
    return NULL;
}

static void do_fork_open(void)
{
    pthread_t busy[3];
    names[0] = next();
    names_count = 1;
    for (int i = 0; i < 3; i++)
        pthread_create(&busy[i], NULL, keep_busy, NULL);
    int good = 0;
    for (int i = 0; i < 40; i++) {
        pid_t child = fork();
        int status;
        if (child == 0) {
            alarm(20);
            failures = 0;
            open_and_close(names[0]);
            _exit(failures != 0);
        }
        waitpid(child, &status, 0);
        good += status == 0;
    }
    stop = 1;
    for (int i = 0; i < 3; i++)
        pthread_join(busy[i], NULL);
    fprintf(stderr, "good children %d failures %d\n", good, (int)failures);
}

static void do_threads(void)
{
    int count = number();
    pthread_t threads[8];
    while (*argument)
        names[names_count++] = next();
    for (int i = 0; i < 8; i++)
        pthread_create(&threads[i], NULL, keep_busy, &count);
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
    fprintf(stderr, "failures %d\n", (int)failures);
}

int main(int argc, char **argv)
{
    (void)argc;
    alarm(60); /* a call that hangs ends the probe by SIGALRM */
    argument = argv + 1;
    while (*argument) {
        char *word = next();
        if (!strcmp(word, "open")) {
            do_open();
        } else if (!strcmp(word, "open-other")) {
            do_open_other();
        } else if (!strcmp(word, "close")) {
            DAT_IA_HANDLE ia = ias[number()];
            show("close", dat_ia_close(ia, (DAT_CLOSE_FLAGS)number()));
        } else if (!strcmp(word, "close-pointer")) {
            DAT_IA_HANDLE ia = ias[number()];
            dats_get_ia_handle(ia, &ia);
            show("close", dat_ia_close(ia, (DAT_CLOSE_FLAGS)number()));
        } else if (!strcmp(word, "list")) {
            do_list();
        } else if (!strcmp(word, "set")) {
            char *name = next();
            setenv(name, next(), 1);
        } else if (!strcmp(word, "self")) {
            DAT_PROVIDER_INFO info = info_from_arguments();
            fill_own();
            show("self", dat_registry_add_provider(&own, &info));
        } else if (!strcmp(word, "unself") || !strcmp(word, "remove")) {
            DAT_PROVIDER_INFO info = info_from_arguments();
            show(word, dat_registry_remove_provider(&own, &info));
        } else if (!strcmp(word, "bad-handles")) {
            do_bad_handles();
        } else if (!strcmp(word, "bad-arguments")) {
            do_bad_arguments();
        } else if (!strcmp(word, "objects")) {
            do_objects();
        } else if (!strcmp(word, "cancel")) {
            do_cancel();
        } else if (!strcmp(word, "fork-open")) {
            do_fork_open();
        } else if (!strcmp(word, "hook")) {
            do_hook();
        } else if (!strcmp(word, "secure")) {
            printf("secure %lu\n", getauxval(AT_SECURE));
        } else if (!strcmp(word, "threads")) {
            do_threads();
        } else {
            fprintf(stderr, "registry_probe: unknown command %s\n", word);
            return 2;
        }
        fflush(stdout);
    }
    return 0;
}
