/* Where a worker listens. "unix:PATH" (or just a path with a '/'), "tcp:HOST:PORT", IPv6 in brackets. */
#ifndef SERVE_ADDRESS_H
#define SERVE_ADDRESS_H

#include "base/err.h"

#include <sys/socket.h>

typedef struct srv_address {
    bool unix_socket;
    bool loopback;  /* of tcp: every address the name has is one of this machine's loopback */
    char text[160]; /* as given, with its kind */
    struct sockaddr_storage sock;
    socklen_t sock_bytes;
} srv_address;

/* Resolves; of a name with several addresses the first is taken. ERR_ARG: no such form, a path that is too long, a port
 * outside 1 to 65535 (with listen, 0 is any free one). ERR_SYSTEM: a name that does not resolve. */
MUST_USE err_code srv_address_parse(const char *text, bool listen, srv_address *out, err *e);

/* Listens: a Unix socket gets mode 0600, and a stale one (nobody answers) is replaced, a live one refused. *fd is
 * non-blocking; bound (may be NULL) is the address with the port it got. ERR_SYSTEM. */
MUST_USE err_code srv_listen(const srv_address *a, int *fd, srv_address *bound, err *e);
/* After the listening socket was closed: removes the name of a Unix socket. Nothing for TCP. */
void srv_address_remove(const srv_address *a);
const char *srv_address_path(const srv_address *a); /* of a Unix socket */
/* Connects until deadline_ns of clock_ns(); *fd is blocking. ERR_IO names the address. */
MUST_USE err_code srv_connect(const srv_address *a, uint64_t deadline_ns, int *fd, err *e);

#endif
