#include "capture/npy.h"

#include "base/mem.h"

static const char *descr(fmt_dtype d)
{
    switch (d) {
    case FMT_DTYPE_F32: return "<f4";
    case FMT_DTYPE_F64: return "<f8";
    case FMT_DTYPE_F16: return "<f2";
    case FMT_DTYPE_BF16: return "<u2"; /* its bits */
    case FMT_DTYPE_I64: return "<i8";
    case FMT_DTYPE_I32: return "<i4";
    case FMT_DTYPE_I16: return "<i2";
    case FMT_DTYPE_I8: return "|i1";
    case FMT_DTYPE_U64: return "<u8";
    case FMT_DTYPE_U32: return "<u4";
    case FMT_DTYPE_U16: return "<u2";
    case FMT_DTYPE_BOOL: return "|b1";
    default: return "|u1"; /* U8, and the bits of the 8-bit floats */
    }
}

size_t cap_npy_header(const fmt_tensor *t, uint8_t out[CAP_NPY_HEADER])
{
    enum { FIXED = 10, ALIGN = 64 };
    char text[CAP_NPY_HEADER - FIXED]; /* 8 dimensions of 20 digits fit */
    int n = snprintf(text, sizeof text, "{'descr': '%s', 'fortran_order': False, 'shape': (", descr(t->dtype));
    for (int32_t d = 0; d < t->ndim; d++)
        n += snprintf(text + n, sizeof text - (size_t)n, "%s%lld%s", d ? ", " : "", (long long)t->shape[d],
                      t->ndim == 1 ? "," : "");
    n += snprintf(text + n, sizeof text - (size_t)n, "), }");
    size_t total = (FIXED + (size_t)n + 1 + ALIGN - 1) / ALIGN * ALIGN;
    memcpy(out, "\x93NUMPY\x01\x00", 8);
    put_u16(out + 8, (uint16_t)(total - FIXED));
    memcpy(out + FIXED, text, (size_t)n);
    memset(out + FIXED + n, ' ', total - FIXED - (size_t)n);
    out[total - 1] = '\n';
    return total;
}

/* ---- zip ---- */

enum { ZIP64_VERSION = 45, ZIP_DATE = 1 << 5 | 1 /* 1980-01-01 */, ALL_ONES_32 = -1 };

typedef struct member { char *name; uint64_t offset, bytes; uint32_t crc; } member;
struct cap_zip {
    outfile *f;
    member *member;
    size_t count, capacity;
    uint32_t table[256];
};

/* The zip's own CRC-32 (reflected 0xedb88320), not the tape's CRC-32C. */
static uint32_t crc32(const cap_zip *z, uint32_t crc, const void *data, size_t bytes)
{
    const uint8_t *p = data;
    crc = ~crc;
    for (size_t i = 0; i < bytes; i++) crc = crc >> 8 ^ z->table[(crc ^ p[i]) & 0xff];
    return ~crc;
}

err_code cap_zip_open(outfile *f, cap_zip **out, err *e)
{
    cap_zip *z = *out = mem_alloc(1, sizeof *z);
    if (!z) return err_set(e, ERR_NOMEM, "no memory for an archive");
    z->f = f;
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int bit = 0; bit < 8; bit++) c = c & 1 ? c >> 1 ^ 0xedb88320u : c >> 1;
        z->table[i] = c;
    }
    return ERR_OK;
}

/* The fields that a member's local header and its directory entry share: version needed ... name length. */
static void put_common(uint8_t *p, const member *m)
{
    put_u16(p, ZIP64_VERSION);
    put_u16(p + 2, 0);  /* flags */
    put_u16(p + 4, 0);  /* stored */
    put_u16(p + 6, 0);  /* time */
    put_u16(p + 8, ZIP_DATE);
    put_u32(p + 10, m->crc);
    put_u32(p + 14, (uint32_t)ALL_ONES_32); /* both sizes: see the zip64 field */
    put_u32(p + 18, (uint32_t)ALL_ONES_32);
    put_u16(p + 22, (uint16_t)strlen(m->name));
}

err_code cap_zip_put(cap_zip *z, const char *name, const void *head, size_t head_bytes, const void *body, size_t body_bytes,
                     err *e)
{
    void *array = z->member;
    char *copy = mem_strdup(name);
    if (!copy || !mem_grow(&array, &z->capacity, z->count + 1, sizeof *z->member)) {
        free(copy);
        return err_set(e, ERR_NOMEM, "no memory for the archive's directory");
    }
    z->member = array;
    member *m = &z->member[z->count++];
    *m = (member){ copy, outfile_bytes(z->f), (uint64_t)head_bytes + body_bytes, 0 };
    m->crc = crc32(z, crc32(z, 0, head, head_bytes), body, body_bytes);
    uint8_t h[30], extra[20];
    put_u32(h, 0x04034b50);
    put_common(h + 4, m);
    put_u16(h + 28, sizeof extra);
    put_u16(extra, 1); /* zip64 */
    put_u16(extra + 2, sizeof extra - 4);
    put_u64(extra + 4, m->bytes);
    put_u64(extra + 12, m->bytes);
    outfile_write(z->f, h, sizeof h);
    outfile_write(z->f, name, strlen(name));
    outfile_write(z->f, extra, sizeof extra);
    outfile_write(z->f, head, head_bytes);
    outfile_write(z->f, body, body_bytes);
    return ERR_OK;
}

void cap_zip_close(cap_zip *z)
{
    uint64_t start = outfile_bytes(z->f);
    for (size_t i = 0; i < z->count; i++) {
        const member *m = &z->member[i];
        uint8_t h[46] = { 0 }, extra[28];
        put_u32(h, 0x02014b50);
        put_u16(h + 4, ZIP64_VERSION); /* made by */
        put_common(h + 6, m);
        put_u16(h + 30, sizeof extra);
        put_u32(h + 42, (uint32_t)ALL_ONES_32); /* offset: see the zip64 field */
        put_u16(extra, 1);
        put_u16(extra + 2, sizeof extra - 4);
        put_u64(extra + 4, m->bytes);
        put_u64(extra + 12, m->bytes);
        put_u64(extra + 20, m->offset);
        outfile_write(z->f, h, sizeof h);
        outfile_write(z->f, m->name, strlen(m->name));
        outfile_write(z->f, extra, sizeof extra);
    }
    uint64_t end = outfile_bytes(z->f);
    uint8_t t[56 + 20 + 22] = { 0 }; /* zip64 end record, its locator, the classic end record */
    put_u32(t, 0x06064b50);
    put_u64(t + 4, 56 - 12);
    put_u16(t + 12, ZIP64_VERSION);
    put_u16(t + 14, ZIP64_VERSION);
    put_u64(t + 24, z->count);
    put_u64(t + 32, z->count);
    put_u64(t + 40, end - start);
    put_u64(t + 48, start);
    put_u32(t + 56, 0x07064b50);
    put_u64(t + 64, end);
    put_u32(t + 72, 1); /* discs */
    put_u32(t + 76, 0x06054b50);
    put_u32(t + 84, (uint32_t)ALL_ONES_32); /* both counts */
    put_u32(t + 88, (uint32_t)ALL_ONES_32); /* directory bytes */
    put_u32(t + 92, (uint32_t)ALL_ONES_32); /* directory offset */
    outfile_write(z->f, t, sizeof t);
    cap_zip_free(z);
}

void cap_zip_free(cap_zip *z)
{
    if (!z) return;
    for (size_t i = 0; i < z->count; i++) free(z->member[i].name);
    free(z->member);
    free(z);
}
