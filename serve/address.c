#include "serve/address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cli.h"
#include "base/clock.h"

enum { BACKLOG = 64, BUSY_WAIT_MS = 5 };

/* ---- text ---- */

static bool is_loopback(const struct sockaddr *s)
{
    if (s->sa_family == AF_INET) return ntohl(((const struct sockaddr_in *)s)->sin_addr.s_addr) >> 24 == 127;
    const struct in6_addr *v6 = &((const struct sockaddr_in6 *)s)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(v6) || (IN6_IS_ADDR_V4MAPPED(v6) && v6->s6_addr[12] == 127);
}

static err_code parse_unix(const char *path, srv_address *a, err *e)
{
    struct sockaddr_un *un = (struct sockaddr_un *)&a->sock;
    size_t n = strlen(path);
    if (n == 0 || n >= sizeof un->sun_path)
        return err_set(e, ERR_ARG, "address '%s': found a path of %zu bytes, wanted 1 to %zu", a->text, n,
                       sizeof un->sun_path - 1);
    un->sun_family = AF_UNIX;
    memcpy(un->sun_path, path, n + 1);
    a->unix_socket = true;
    a->sock_bytes = sizeof *un;
    return ERR_OK;
}

static err_code parse_tcp(const char *rest, bool listen, srv_address *a, err *e)
{
    char host[sizeof a->text];
    const char *colon = strrchr(rest, ':'), *first = rest, *end = colon;
    bool v6 = colon && colon > rest + 1 && rest[0] == '[' && colon[-1] == ']';
    if (v6) { first++; end--; }
    size_t n = colon ? (size_t)(end - first) : 0;
    if (n == 0 || (!v6 && memchr(first, ':', n)))
        return err_set(e, ERR_ARG, "address '%s': wanted tcp:HOST:PORT, an IPv6 host in brackets", a->text);
    memcpy(host, first, n);
    host[n] = 0;
    int64_t port;
    TRY(cli_int(colon + 1, "port of the address", listen ? 0 : 1, 65535, &port, e));

    struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_family = v6 ? AF_INET6 : AF_UNSPEC,
                              .ai_flags = AI_NUMERICSERV | (v6 ? AI_NUMERICHOST : 0) }, *found;
    int rc = getaddrinfo(host, colon + 1, &hints, &found);
    if (rc != 0) return err_set(e, ERR_SYSTEM, "address '%s': %s", a->text, gai_strerror(rc));
    memcpy(&a->sock, found->ai_addr, found->ai_addrlen);
    a->sock_bytes = found->ai_addrlen;
    a->loopback = true;
    for (struct addrinfo *i = found; i; i = i->ai_next) a->loopback = a->loopback && is_loopback(i->ai_addr);
    freeaddrinfo(found);
    return ERR_OK;
}

err_code srv_address_parse(const char *text, bool listen, srv_address *out, err *e)
{
    srv_address a = { 0 };
    bool is_tcp = strncmp(text, "tcp:", 4) == 0, is_unix = strncmp(text, "unix:", 5) == 0;
    if (!is_tcp && !is_unix && !strchr(text, '/'))
        return err_set(e, ERR_ARG, "address: found '%.100s', wanted unix:PATH or tcp:HOST:PORT", text);
    int n = snprintf(a.text, sizeof a.text, "%s%s", is_tcp || is_unix ? "" : "unix:", text);
    if (n < 0 || (size_t)n >= sizeof a.text)
        return err_set(e, ERR_ARG, "address: found %zu bytes, wanted at most %zu", strlen(text), sizeof a.text - 6);
    TRY(is_tcp ? parse_tcp(a.text + 4, listen, &a, e) : parse_unix(a.text + 5, &a, e));
    *out = a;
    return ERR_OK;
}

/* ---- listening ---- */

static err_code failed(const srv_address *a, err_code code, const char *what, int error, err *e)
{
    return err_set(e, code, "%s %s: %s", what, a->text, strerror(error));
}

static int open_socket(const srv_address *a)
{
    return socket(a->sock.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

/* Removes a socket at the address that nobody answers. ERR_SYSTEM: a live one, or something else by that name. Two workers
 * that start at once may both find a stale one; the later then takes the name. */
static err_code remove_stale(const srv_address *a, err *e)
{
    const char *path = ((const struct sockaddr_un *)&a->sock)->sun_path;
    struct stat st;
    if (lstat(path, &st) != 0) return errno == ENOENT ? ERR_OK : failed(a, ERR_SYSTEM, "cannot listen on", errno, e);
    if (!S_ISSOCK(st.st_mode)) return err_set(e, ERR_SYSTEM, "cannot listen on %s: it is there and is no socket", a->text);
    int fd = open_socket(a);
    if (fd < 0) return failed(a, ERR_SYSTEM, "cannot listen on", errno, e);
    bool stale = connect(fd, (const struct sockaddr *)&a->sock, a->sock_bytes) != 0 && errno == ECONNREFUSED;
    close(fd);
    if (!stale) return err_set(e, ERR_SYSTEM, "cannot listen on %s: somebody does already", a->text);
    if (unlink(path) != 0) return failed(a, ERR_SYSTEM, "cannot replace the stale socket", errno, e);
    return ERR_OK;
}

/* The port that the system chose, into the text. */
static err_code name_bound(const srv_address *a, int fd, srv_address *bound, err *e)
{
    *bound = *a;
    if (a->unix_socket) return ERR_OK;
    bound->sock_bytes = sizeof bound->sock;
    if (getsockname(fd, (struct sockaddr *)&bound->sock, &bound->sock_bytes) != 0)
        return failed(a, ERR_SYSTEM, "cannot listen on", errno, e);
    const struct sockaddr *s = (const struct sockaddr *)&bound->sock;
    int port = ntohs(s->sa_family == AF_INET ? ((const struct sockaddr_in *)s)->sin_port
                                             : ((const struct sockaddr_in6 *)s)->sin6_port);
    int host = (int)(strrchr(a->text, ':') - a->text);
    snprintf(bound->text, sizeof bound->text, "%.*s:%d", host, a->text, port);
    return ERR_OK;
}

err_code srv_listen(const srv_address *a, int *fd, srv_address *bound, err *e)
{
    const int on = 1;
    if (a->unix_socket) TRY(remove_stale(a, e));
    int s = open_socket(a);
    if (s < 0) return failed(a, ERR_SYSTEM, "cannot listen on", errno, e);
    if (!a->unix_socket) (void)setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (a->sock.ss_family == AF_INET6) (void)setsockopt(s, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
    bool named = bind(s, (const struct sockaddr *)&a->sock, a->sock_bytes) == 0;
    /* The mode is set before listen: until then nobody can connect. */
    if (!named || (a->unix_socket && chmod(((const struct sockaddr_un *)&a->sock)->sun_path, 0600) != 0) ||
        listen(s, BACKLOG) != 0) {
        int error = errno;
        close(s);
        if (named) srv_address_remove(a);
        return failed(a, ERR_SYSTEM, "cannot listen on", error, e);
    }
    err_code rc = bound ? name_bound(a, s, bound, e) : ERR_OK;
    if (rc != ERR_OK) close(s);
    else *fd = s;
    return rc;
}

const char *srv_address_path(const srv_address *a) { return ((const struct sockaddr_un *)&a->sock)->sun_path; }

void srv_address_remove(const srv_address *a)
{
    if (a->unix_socket) (void)unlink(srv_address_path(a));
}

/* ---- connecting ---- */

/* Milliseconds to the deadline, rounded up. */
static int left_ms(uint64_t deadline_ns)
{
    uint64_t now = clock_ns(), left = deadline_ns > now ? (deadline_ns - now + 999999) / 1000000 : 0;
    return left < 1000000 ? (int)left : 1000000;
}

/* 0, or the errno. */
static int try_connect(const srv_address *a, int fd, uint64_t deadline_ns)
{
    while (connect(fd, (const struct sockaddr *)&a->sock, a->sock_bytes) != 0) {
        int error = errno, left = left_ms(deadline_ns);
        if (error == EISCONN) return 0;
        if (error != EINPROGRESS && error != EALREADY && error != EINTR && error != EAGAIN) return error;
        if (left == 0) return ETIMEDOUT;
        if (error == EAGAIN) { /* a Unix socket whose queue is full: there is nothing to poll for */
            (void)poll(NULL, 0, left < BUSY_WAIT_MS ? left : BUSY_WAIT_MS);
            continue;
        }
        if (poll(&(struct pollfd){ .fd = fd, .events = POLLOUT }, 1, left) <= 0) continue;
        socklen_t n = sizeof error;
        if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &n) != 0) return errno;
        if (error != 0) return error;
    }
    return 0;
}

err_code srv_connect(const srv_address *a, uint64_t deadline_ns, int *fd, err *e)
{
    const int on = 1;
    int s = open_socket(a);
    if (s < 0) return failed(a, ERR_IO, "cannot connect to", errno, e);
    int error = try_connect(a, s, deadline_ns);
    if (error == 0 && fcntl(s, F_SETFL, fcntl(s, F_GETFL) & ~O_NONBLOCK) != 0) error = errno;
    if (error != 0) {
        close(s);
        return failed(a, ERR_IO, "cannot connect to", error, e);
    }
    if (!a->unix_socket) (void)setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    *fd = s;
    return ERR_OK;
}
