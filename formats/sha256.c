#include "formats/sha256.h"

#include <openssl/evp.h>

struct fmt_sha256_state { EVP_MD_CTX *md; };

err_code fmt_sha256_open(fmt_sha256_state **out, err *e)
{
    *out = NULL;
    fmt_sha256_state *s = malloc(sizeof *s);
    if (!s) return err_set(e, ERR_NOMEM, "sha256: no memory for its state");
    s->md = EVP_MD_CTX_new();
    if (!s->md || EVP_DigestInit_ex(s->md, EVP_sha256(), NULL) != 1) {
        EVP_MD_CTX_free(s->md);
        free(s);
        return err_set(e, ERR_NOMEM, "sha256: libcrypto gave no digest");
    }
    *out = s;
    return ERR_OK;
}

void fmt_sha256_add(fmt_sha256_state *s, const void *data, size_t bytes)
{
    CHECK(EVP_DigestUpdate(s->md, data, bytes) == 1);
}

void fmt_sha256_close(fmt_sha256_state *s, fmt_sha256 *out)
{
    if (!s) return;
    if (out) CHECK(EVP_DigestFinal_ex(s->md, out->bytes, NULL) == 1);
    EVP_MD_CTX_free(s->md);
    free(s);
}

err_code fmt_sha256_of(const void *data, size_t bytes, fmt_sha256 *out, err *e)
{
    fmt_sha256_state *s;
    TRY(fmt_sha256_open(&s, e));
    fmt_sha256_add(s, data, bytes);
    fmt_sha256_close(s, out);
    return ERR_OK;
}

void fmt_sha256_hex(const fmt_sha256 *h, char hex[FMT_SHA256_HEX])
{
    for (int i = 0; i < FMT_SHA256_BYTES; i++) snprintf(hex + 2 * i, 3, "%02x", h->bytes[i]);
}
