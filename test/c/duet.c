/*
 * duet: runs a server and its client, and prints the processor time of each.
 *
 *   duet tcp:PORT | text:WORDS | text@PORT:WORDS  SERVER ARGS... -- CLIENT ARGS...
 *
 * The client starts when a socket listens on the port, when the server has printed the text, or after both. Duet prints
 * the client's output, then with `text` the server's output with the prefix "server | ", then one line of JSON. The
 * exit status reports failures.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static char output[1 << 16];
static size_t length;

static void fail(const char *reason)
{
    fprintf(stderr, "duet: %s; output of the server:\n%s\n", reason, output);
    exit(1);
}

static pid_t start(char **words, int output)
{
    pid_t pid = fork();
    if (pid == 0) {
        if (output >= 0) {
            dup2(output, 1);
            dup2(output, 2);
            close(output);
        }
        execvp(words[0], words);
        perror(words[0]);
        _exit(127);
    }
    if (pid < 0)
        fail("fork failed");
    return pid;
}

/* Reads more output of the server. Returns 0 at the end of the output. Output beyond the buffer is dropped. */
static int listen_on(int input)
{
    char rest[4096];
    int is_full = length + 1 >= sizeof output;
    ssize_t count = is_full ? read(input, rest, sizeof rest) : read(input, output + length, sizeof output - length - 1);
    if (count > 0 && !is_full)
        length += (size_t)count;
    output[length] = 0;
    return count > 0;
}

/* Whether a kernel table lists a listener (state 0A) on this port. A trial connection is not possible, because the
 * server would take it for its client. */
static int has_listener(const char *table, unsigned port)
{
    char line[512];
    unsigned local, state;
    int found = 0;
    FILE *file = fopen(table, "r");
    while (file != NULL && !found && fgets(line, sizeof line, file) != NULL)
        found = sscanf(line, " %*d: %*[0-9A-Fa-f]:%x %*[0-9A-Fa-f]:%*x %x", &local, &state) == 2 && local == port
                && state == 0x0A;
    if (file != NULL)
        fclose(file);
    return found;
}

static void await_port(unsigned port, pid_t server, int input)
{
    while (!has_listener("/proc/net/tcp", port) && !has_listener("/proc/net/tcp6", port)) {
        if (waitpid(server, NULL, WNOHANG) != 0) {
            while (listen_on(input))
                ;
            fail("the server ended before it listened");
        }
        usleep(5000);
    }
}

static void await_text(const char *text, int input)
{
    while (strstr(output, text) == NULL)
        if (!listen_on(input))
            fail("the server ended before it was ready");
}

static void print_said(void)
{
    char *line, *rest = NULL;
    for (line = strtok_r(output, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest))
        printf("server | %s\n", line);
}

static double usec(const struct rusage *usage)
{
    return (double)usage->ru_utime.tv_sec * 1e6 + (double)usage->ru_utime.tv_usec
           + (double)usage->ru_stime.tv_sec * 1e6 + (double)usage->ru_stime.tv_usec;
}

int main(int argc, char **argv)
{
    struct rusage server_usage, client_usage;
    int pipes[2], server_status, client_status, n = 2;
    const char *words;
    pid_t server, client;

    while (n < argc && strcmp(argv[n], "--") != 0)
        n++;
    if (n + 1 >= argc || n == 2) {
        fprintf(stderr, "usage: duet tcp:PORT|text:WORDS|text@PORT:WORDS SERVER ARGS -- CLIENT ARGS\n");
        return 2;
    }
    argv[n] = NULL;
    if (pipe(pipes) != 0)
        fail("pipe failed");
    server = start(argv + 2, pipes[1]);
    close(pipes[1]);
    words = strchr(argv[1], ':');
    if (words == NULL)
        fail("expected tcp:PORT, text:WORDS or text@PORT:WORDS");
    if (strncmp(argv[1], "text", 4) == 0)
        await_text(words + 1, pipes[0]);
    if (strncmp(argv[1], "text@", 5) == 0)
        await_port((unsigned)atoi(argv[1] + 5), server, pipes[0]);
    else if (strncmp(argv[1], "tcp:", 4) == 0)
        await_port((unsigned)atoi(words + 1), server, pipes[0]);
    client = start(argv + n + 1, -1);
    if (wait4(client, &client_status, 0, &client_usage) < 0)
        fail("wait4 of the client failed");
    if (client_status != 0) {
        sleep(1);
        kill(server, 15);
    }
    while (listen_on(pipes[0]))
        ;
    if (wait4(server, &server_status, 0, &server_usage) < 0)
        fail("wait4 of the server failed");
    if (client_status != 0)
        fail("the client failed");
    if (server_status != 0)
        fail("the server failed");
    if (strncmp(argv[1], "text", 4) == 0)
        print_said();
    printf("{\"server_cpu\":%.0f,\"client_cpu\":%.0f}\n", usec(&server_usage), usec(&client_usage));
    return 0;
}
