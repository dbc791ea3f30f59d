#include "base/base.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

static void test_sizes_that_parse(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t value;
    } rows[] = {{"0", 0},
                {"1", 1},
                {"512K", 524288},
                {"5M", 5242880},
                {"1.5M", 1572864},
                {"32k", 32768},
                {"1KiB", 1024},
                {"80GiB", 85899345920},
                {"0.5K", 512},
                {"0.000244140625M", 256},
                {"8388607.999755859375T", INT64_MAX - 268435455},
                {"12B", 12},
                {"79.2GiB", 85040352460}, // of 85040352460.8
                {"0.3KiB", 307},
                {"2T", 2199023255552},
                {"9223372036854775807", INT64_MAX}};
    for (int i = 0; i < UP_COUNT(rows); i++) {
        int64_t value = -1;
        if (!up_parse_size(rows[i].text, &value)) fail_msg("%s is refused", rows[i].text);
        assert_int_equal(value, rows[i].value);
    }
}

static void test_sizes_that_do_not(void **state)
{
    (void)state;
    static const char *const rows[] = {"",
                                       "K",
                                       "-1",
                                       "+1",
                                       " 1",
                                       "1 ",
                                       "1KB",
                                       "1kb",
                                       "1Ki",
                                       "1X",
                                       "0x10",
                                       "1e3",
                                       "1.",
                                       ".5K",
                                       "1.3",
                                       "0.3K",
                                       "0.900000015562T",
                                       "nan",
                                       "inf",
                                       "9223372036854775808",
                                       "8388608T",
                                       "99999999999999999999",
                                       "1.0000000000001K",
                                       "1,5K",
                                       "1KK"};
    for (int i = 0; i < UP_COUNT(rows); i++) {
        int64_t value = 77;
        if (up_parse_size(rows[i], &value))
            fail_msg("'%s' is taken for %lld", rows[i], (long long)value);
        assert_int_equal(value, 77);
    }
}

static void test_numbers(void **state)
{
    (void)state;
    int64_t integer = 0;
    double real = 0;
    assert_true(up_parse_integer("-7", &integer) && integer == -7);
    assert_false(up_parse_integer("7K", &integer) || up_parse_integer("", &integer) ||
                 up_parse_integer("-", &integer) || up_parse_integer(" 7", &integer) ||
                 up_parse_integer("9223372036854775808", &integer));
    assert_true(up_parse_real("3e-4", &real) && real == 3e-4);
    assert_true(up_parse_real(".5", &real) && real == .5);
    assert_false(up_parse_real("nan", &real) || up_parse_real("inf", &real) ||
                 up_parse_real("1e999", &real) || up_parse_real("1x", &real) ||
                 up_parse_real("0x10", &real) || up_parse_real("-0X1p3", &real) ||
                 up_parse_real("", &real) || up_parse_real(".", &real));
}

// What is printed as a count reads back as the same number.
static void test_counts_round_trip(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 2000; i++) {
        int64_t count = (int64_t)(up_random_u64(1, 2, i) >> (1 + i % 60)), back = -1;
        if (i % 3 == 0) count = count >> 20 << 20;
        char text[UP_UNITS_TEXT];
        assert_true(up_parse_size(up_format_count(text, count), &back));
        assert_int_equal(back, count);
    }
}

static void test_formats(void **state)
{
    (void)state;
    char text[UP_UNITS_TEXT];
    assert_string_equal(up_format_bytes(text, 0), "0 B");
    assert_string_equal(up_format_bytes(text, 1023), "1023 B");
    assert_string_equal(up_format_bytes(text, 1024), "1.00 KiB");
    assert_string_equal(up_format_bytes(text, 1536), "1.50 KiB");
    assert_string_equal(up_format_bytes(text, 1048575), "1.00 MiB");
    assert_string_equal(up_format_bytes(text, 13207024435), "12.3 GiB");
    assert_string_equal(up_format_bytes(text, UINT64_MAX), "16.0 EiB");
    assert_string_equal(up_format_count(text, 524288), "512K");
    assert_string_equal(up_format_count(text, 1000), "1000");
    assert_string_equal(up_format_seconds(text, 2e-5), "20 us");
    assert_string_equal(up_format_seconds(text, 1.424), "1.42 s");
    assert_string_equal(up_format_seconds(text, 390), "6 min 30 s");
    assert_string_equal(up_format_seconds(text, 7500), "2 h 05 min");
    assert_string_equal(up_format_seconds(text, -1), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes_that_parse), cmocka_unit_test(test_sizes_that_do_not),
        cmocka_unit_test(test_numbers),          cmocka_unit_test(test_counts_round_trip),
        cmocka_unit_test(test_formats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
