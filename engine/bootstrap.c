#include "engine/bootstrap.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/config.h"

/* A peer's greeting: magic, its rank, its number of ranks. The answer: one byte, 1 for welcome, then the blob. Afterwards
 * either side may send one message of fixed size: BYE, or why it failed, padded with zeros. */
enum {
    HELLO_MAGIC = 0x42545053, /* "SPTB" */
    HELLO_BYTES = 12,
    MESSAGE_BYTES = 256,
    HOST_BYTES = 256,
    PORT_BYTES = 8,
    RETRY_NS = 50000000,
    HELLO_NS = 2000000000,   /* a stranger that says nothing must not hold up the ranks */
    MESSAGE_NS = 1000000000, /* a message fits any socket's buffer: this passes only where the peer is gone */
};
static const char BYE[] = "bye";

struct eng_peers {
    int32_t rank, n_ranks;
    int fd[ENG_RANKS_MAX];    /* by peer's rank, -1: none. Rank 0 has all others, they have rank 0 */
    bool left[ENG_RANKS_MAX]; /* said goodbye */
    bool told;
};

static err_code split(const char *text, char host[HOST_BYTES], char port[PORT_BYTES], err *e)
{
    const char *colon = strrchr(text, ':');
    size_t n = colon ? (size_t)(colon - text) : 0, first = 0;
    if (n > 1 && text[0] == '[' && text[n - 1] == ']') first = 1, n -= 2;
    else if (colon && memchr(text, ':', (size_t)(colon - text))) n = 0; /* an IPv6 address needs its brackets */
    if (n == 0 || n >= HOST_BYTES || strlen(colon + 1) >= PORT_BYTES)
        return err_set(e, ERR_ARG, "--bootstrap: found '%.64s', wanted HOST:PORT", text);
    memcpy(host, text + first, n);
    host[n] = 0;
    memcpy(port, colon + 1, strlen(colon + 1) + 1);
    char *end;
    long number = strtol(port, &end, 10);
    if (*end || number < 1 || number > 65535)
        return err_set(e, ERR_ARG, "--bootstrap: found port '%s', wanted 1 to 65535", port);
    return ERR_OK;
}

err_code eng_bootstrap_check(const char *text, err *e)
{
    char host[HOST_BYTES], port[PORT_BYTES];
    return split(text, host, port, e);
}

/* Milliseconds left, at least 0. */
static int left_ms(uint64_t until)
{
    uint64_t now = clock_ns();
    return now >= until ? 0 : (int)((until - now) / 1000000u) + 1;
}

/* Waits until fd has something (an error counts); false when time is up. */
static bool wait_for(int fd, short events, uint64_t until)
{
    struct pollfd p = { fd, events, 0 };
    int n;
    do n = poll(&p, 1, left_ms(until));
    while (n < 0 && errno == EINTR);
    return n > 0;
}

/* Moves all of n bytes; false on an error, a closed peer, or when time is up. */
static bool transfer(int fd, void *data, size_t n, bool out, uint64_t until)
{
    for (size_t at = 0; at < n;) {
        if (!wait_for(fd, out ? POLLOUT : POLLIN, until)) return false;
        uint8_t *rest = (uint8_t *)data + at;
        ssize_t got = out ? send(fd, rest, n - at, MSG_NOSIGNAL) : recv(fd, rest, n - at, 0);
        if (got <= 0) return false;
        at += (size_t)got;
    }
    return true;
}

static err_code resolve(const char *address, bool listening, struct addrinfo **out, err *e)
{
    char host[HOST_BYTES], port[PORT_BYTES];
    struct addrinfo hints = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM,
                              .ai_flags = AI_NUMERICSERV | (listening ? AI_PASSIVE : 0) };
    TRY(split(address, host, port, e));
    int rc = getaddrinfo(host, port, &hints, out);
    if (rc != 0) return err_set(e, ERR_SYSTEM, "--bootstrap %s: %s", address, gai_strerror(rc));
    return ERR_OK;
}

static err_code open_listener(const char *address, int *out, err *e)
{
    struct addrinfo *a = NULL;
    int one = 1;
    *out = -1;
    TRY(resolve(address, true, &a, e));
    int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
    bool fine = fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0 &&
                bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, ENG_RANKS_MAX) == 0;
    int why = errno;
    freeaddrinfo(a);
    if (fine) {
        *out = fd;
        return ERR_OK;
    }
    if (fd >= 0) close(fd);
    return err_set(e, ERR_SYSTEM, "--bootstrap %s: cannot listen: %s", address, strerror(why));
}

/* Answers one peer; returns its rank, or -1. Whatever it is, the others are waited for all the same. */
static int32_t welcome(int fd, const eng_peers *p, void *blob, size_t bytes, uint64_t until)
{
    uint8_t hello[HELLO_BYTES], answer = 0;
    uint64_t soon = clock_ns() + HELLO_NS;
    if (soon > until) soon = until;
    if (!transfer(fd, hello, sizeof hello, false, soon)) return -1;
    uint32_t rank = get_u32(hello + 4);
    answer = get_u32(hello) == HELLO_MAGIC && get_u32(hello + 8) == (uint32_t)p->n_ranks && rank > 0 &&
             rank < (uint32_t)p->n_ranks && p->fd[rank] < 0;
    if (!transfer(fd, &answer, 1, true, soon) || !answer) return -1;
    return transfer(fd, blob, bytes, true, soon) ? (int32_t)rank : -1;
}

static err_code serve(eng_peers *p, const char *address, void *blob, size_t bytes, uint64_t until, err *e)
{
    int32_t n = 1;
    int fd;
    TRY(open_listener(address, &fd, e));
    while (n < p->n_ranks) {
        if (!wait_for(fd, POLLIN, until)) break;
        int peer = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
        if (peer < 0) continue;
        int32_t rank = welcome(peer, p, blob, bytes, until);
        if (rank < 0) {
            close(peer);
            continue;
        }
        p->fd[rank] = peer;
        n++;
    }
    close(fd);
    if (n == p->n_ranks) return ERR_OK;
    return err_set(e, ERR_COMM, "--bootstrap %s: rank 0: %d of %d ranks came in time", address, n, p->n_ranks);
}

/* One try to reach rank 0. *refused: it is there and does not want this rank. */
static bool ask(eng_peers *p, const char *address, void *blob, size_t bytes, uint64_t until, bool *refused, err *e)
{
    struct addrinfo *list = NULL;
    uint8_t hello[HELLO_BYTES], answer = 0;
    if (resolve(address, false, &list, e) != ERR_OK) return false;
    put_u32(hello, HELLO_MAGIC);
    put_u32(hello + 4, (uint32_t)p->rank);
    put_u32(hello + 8, (uint32_t)p->n_ranks);
    for (const struct addrinfo *a = list; a && p->fd[0] < 0 && !*refused; a = a->ai_next) {
        int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
        bool done = false;
        int left = left_ms(until) + 1; /* 0 would be no limit */
        struct timeval limit = { left / 1000, left % 1000 * 1000 };
        if (fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) == 0 && /* connect heeds it too */
            connect(fd, a->ai_addr, a->ai_addrlen) == 0 && transfer(fd, hello, sizeof hello, true, until) &&
            transfer(fd, &answer, 1, false, until)) {
            *refused = answer != 1;
            done = !*refused && transfer(fd, blob, bytes, false, until);
        }
        if (done) p->fd[0] = fd;
        else if (fd >= 0) close(fd);
    }
    freeaddrinfo(list);
    return p->fd[0] >= 0;
}

static err_code find_rank_0(eng_peers *p, const char *address, void *blob, size_t bytes, uint64_t deadline_ns, err *e)
{
    uint64_t until = clock_ns() + deadline_ns;
    TRY(eng_bootstrap_check(address, e));
    while (clock_ns() < until) {
        bool refused = false;
        if (ask(p, address, blob, bytes, until, &refused, e)) return ERR_OK;
        if (refused)
            return err_set(e, ERR_COMM, "--bootstrap %s: rank %d of %d is not wanted there: another rank count, or this "
                           "rank came before", address, p->rank, p->n_ranks);
        struct timespec pause = { 0, RETRY_NS };
        nanosleep(&pause, NULL);
    }
    return err_set(e, ERR_COMM, "--bootstrap %s: rank %d: rank 0 did not answer within %.0f s", address, p->rank,
                   (double)deadline_ns * 1e-9);
}

static void close_all(eng_peers *p)
{
    for (int32_t r = 0; r < ENG_RANKS_MAX; r++)
        if (p->fd[r] >= 0) close(p->fd[r]);
    free(p);
}

err_code eng_peers_open(const char *address, int32_t rank, int32_t n_ranks, void *blob, size_t bytes, uint64_t deadline_ns,
                        eng_peers **out, err *e)
{
    eng_peers *p = mem_alloc(1, sizeof *p);
    *out = NULL;
    if (!p) return err_set(e, ERR_NOMEM, "--bootstrap %s: no memory", address);
    p->rank = rank;
    p->n_ranks = n_ranks;
    for (int32_t r = 0; r < ENG_RANKS_MAX; r++) p->fd[r] = -1;
    err_code rc = rank == 0 ? serve(p, address, blob, bytes, clock_ns() + deadline_ns, e)
                            : find_rank_0(p, address, blob, bytes, deadline_ns, e);
    if (rc != ERR_OK) {
        close_all(p);
        return rc;
    }
    *out = p;
    return ERR_OK;
}

/* ---- afterwards ---- */

err_code eng_peers_check(eng_peers *p, err *e)
{
    for (int32_t r = 0; p && r < p->n_ranks; r++) {
        char message[MESSAGE_BYTES] = "";
        if (p->fd[r] < 0 || p->left[r] || !wait_for(p->fd[r], POLLIN, 0)) continue;
        bool said = transfer(p->fd[r], message, sizeof message, false, clock_ns() + MESSAGE_NS);
        message[MESSAGE_BYTES - 1] = 0;
        if (!said) return err_set(e, ERR_COMM, "rank %d is gone without a word", r);
        p->left[r] = strcmp(message, BYE) == 0;
        if (!p->left[r]) return err_set(e, ERR_COMM, "rank %d failed: %s", r, message);
    }
    return ERR_OK;
}

static void say(eng_peers *p, const char *what)
{
    char message[MESSAGE_BYTES] = "";
    snprintf(message, sizeof message, "%s", what);
    for (int32_t r = 0; r < p->n_ranks; r++)
        if (p->fd[r] >= 0) (void)transfer(p->fd[r], message, sizeof message, true, clock_ns() + MESSAGE_NS);
}

void eng_peers_tell(eng_peers *p, const char *why)
{
    if (!p || p->told) return;
    p->told = true;
    say(p, why);
}

void eng_peers_close(eng_peers *p)
{
    if (!p) return;
    if (!p->told) say(p, BYE);
    close_all(p);
}
