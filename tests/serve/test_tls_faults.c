/* TLS whose n-th allocation fails, ours or OpenSSL's: once, and for good. A key or a connection is opened or there is an
 * error in one line; nothing leaks, and the next one is opened as if nothing had been. */
#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/ssl.h>
#include <unistd.h>

#include "serve/tls.h"
#include "tests/support/each_fault.h"

static const char KEY[] = "tls_faults.key";

typedef struct work { bool server; } work;

static void *ssl_malloc(size_t n, const char *file, int line)
{
    (void)file, (void)line;
    return __wrap_malloc(n);
}

static void *ssl_realloc(void *p, size_t n, const char *file, int line)
{
    (void)file, (void)line;
    return __wrap_realloc(p, n);
}

static void ssl_free(void *p, const char *file, int line)
{
    (void)file, (void)line;
    free(p);
}

/* A key, a connection, and of a client its first flight. */
static err_code open_all(bool server, err *e)
{
    srv_key *key;
    srv_tls *tls = NULL;
    srv_buf wire = { 0 };
    TRY(srv_key_open(KEY, server, &key, e));
    err_code rc = srv_tls_open(key, &tls, e);
    if (rc == ERR_OK && !server) rc = srv_tls_send(tls, NULL, 0, &wire, e);
    if (rc == ERR_OK && !server) assert_true(wire.bytes > 50);
    srv_tls_close(tls);
    srv_key_close(key);
    srv_buf_fini(&wire);
    return rc;
}

static void before(const void *ctx) { (void)ctx; }
static err_code run(const void *ctx, err *e) { return open_all(((const work *)ctx)->server, e); }

/* OpenSSL does not always say that it was memory. */
static void after(const void *ctx, err_code rc, const err *why, err_code wanted, long at)
{
    if (rc != ERR_OK && ((rc != wanted && rc != ERR_SYSTEM && rc != ERR_IO) || !why->msg[0] || strchr(why->msg, '\n')))
        fail_msg("fault %ld: %s: %s", at, err_name(rc), why->msg);
    if (rc != ERR_OK && at % 8 == 0) OK(open_all(((const work *)ctx)->server, e));
}

static void an_end_without_memory_is_refused_and_the_next_one_opens(void **state)
{
    (void)state;
    for (int server = 0; server < 2; server++)
        for (int persistent = 0; persistent < 2; persistent++) {
            const work w = { server };
            OK(open_all(server, e)); /* what OpenSSL makes once */
            const fault_loop l = { before, run, after, SLOW ? 8 : 50 };
            assert_true(each_fault(&l, &w, alloc_fail_at, alloc_fail_end, ERR_NOMEM, persistent) > 20);
        }
}

static int set_up(void **state)
{
    static const char HEX[] = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff\n";
    (void)state;
    if (CRYPTO_set_mem_functions(ssl_malloc, ssl_realloc, ssl_free) != 1) return -1;
    unlink(KEY);
    const int fd = open(KEY, O_CREAT | O_WRONLY | O_EXCL, 0600);
    return fd >= 0 && write(fd, HEX, sizeof HEX - 1) == sizeof HEX - 1 ? close(fd) : -1;
}

static int tear_down(void **state)
{
    (void)state;
    return unlink(KEY);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(an_end_without_memory_is_refused_and_the_next_one_opens) };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
