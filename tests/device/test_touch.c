/* First touches: all of the memory and nothing beside it, and the processors that are near. */
#define _GNU_SOURCE
#include "device/touch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>

static char path[] = "/tmp/upipe-test-XXXXXX";

// What is kept of processors 2 to 9 and 40 by a file that holds `text`.
static void expect(const char *text, const char *kept)
{
    cpu_set_t cpus;
    char found[256] = "";
    CPU_ZERO(&cpus);
    for (int cpu = 2; cpu < 10; cpu++) CPU_SET(cpu, &cpus);
    CPU_SET(40, &cpus);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    up_touch_keep_near(path, &cpus);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &cpus))
            snprintf(found + strlen(found), sizeof found - strlen(found), " %d", cpu);
    assert_string_equal(found, kept);
}

static void test_lists(void **state)
{
    static const char all[] = " 2 3 4 5 6 7 8 9 40";
    (void)state;
    int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    expect("0-3\n", " 2 3");
    expect("0-3", " 2 3");
    expect("5\n", " 5");
    expect("0-2,8-63\n", " 2 8 9 40");
    expect("9,40-40\n", " 9 40");
    expect("0-1\n", all); // none of them
    expect("\n", all);
    expect("", all);
    expect("3-2\n", all);
    expect("-3\n", all);
    expect("4;5\n", all);
    expect("4,\n", all);
    expect("0-99999999\n", all);
    expect("4,five\n", all);
    unlink(path);
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET(7, &cpus);
    up_touch_keep_near(path, &cpus); // no such file
    assert_int_equal(CPU_COUNT(&cpus), 1);
}

static void check_touch(size_t before, size_t bytes)
{
    enum { ROOM = 40 << 20, PAGE = 4096 };
    static unsigned char there[ROOM / PAGE];
    char *base = mmap(NULL, ROOM, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_true(base != MAP_FAILED);
    madvise(base, ROOM, MADV_NOHUGEPAGE); // as a machine whose own habit is small pages
    up_touch(base + before, bytes, before ? path : NULL);
    assert_int_equal(mincore(base, ROOM, there), 0);
    for (size_t page = 0; page < ROOM / PAGE; page++) {
        bool within = page * PAGE >= before && page * PAGE < before + bytes;
        if (there[page] % 2 != within) fail_msg("page %zu of %zu + %zu", page, before, bytes);
    }
    munmap(base, ROOM);
}

static void test_all_and_no_more(void **state)
{
    (void)state;
    check_touch(0, 0);
    check_touch(0, 4096);
    check_touch(8192, 17 * 4096);
    check_touch(0, 33 << 20);
    check_touch(4096, (32 << 20) + 12288);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lists),
                                       cmocka_unit_test(test_all_and_no_more)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
