/* Keeps faults of memory (tests/formats/alloc_fail.h) out of jansson's parser, which answers some of them by a wrong error
 * and some by an assertion. The test is linked with JSON_WHOLE_WRAP of tests/CMakeLists.txt. */
#ifndef TESTS_SUPPORT_JSON_WHOLE_H
#define TESTS_SUPPORT_JSON_WHOLE_H

#include "tests/formats/alloc_fail.h"

json_t *__real_json_loadb(const char *text, size_t bytes, size_t flags, json_error_t *why);
json_t *__wrap_json_loadb(const char *text, size_t bytes, size_t flags, json_error_t *why);

json_t *__wrap_json_loadb(const char *text, size_t bytes, size_t flags, json_error_t *why)
{
    const long left = atomic_exchange(&alloc_left, -1);
    json_t *j = __real_json_loadb(text, bytes, flags, why);
    alloc_left = left;
    return j;
}

#endif
