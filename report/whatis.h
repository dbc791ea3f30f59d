/* What of a model could be so many bytes: candidates from whatis.def, each solved for the tokens
 * that would make it so (or taken at the tokens that are given), and ordered by how likely it is.
 */
#ifndef UP_REPORT_WHATIS_H
#define UP_REPORT_WHATIS_H

#include "model/model.h"

/* A size as it was printed: 58.15 GiB stands for what rounds to that. */
struct up_printed_size {
    double bytes, low, high;
};
/* "58.15GiB", "58.15 GiB", "165 GB" (powers of 1000), "512K", "1234567": false for anything else,
 * and for sizes that are not positive or not below 2^60. */
bool up_printed_size_parse(const char *text, struct up_printed_size *size);

/* Counts of 0 are not known. */
struct up_whatis_question {
    struct up_printed_size size;
    struct up_model model;
    int64_t seq, batch, ranks, cp, tp; // batch, cp and tp: 0 is 1
    int act_bytes;                     // of the compute dtype: 2 or 4
};

enum up_whatis_growth { UP_WHATIS_FIXED, UP_WHATIS_TOKENS, UP_WHATIS_SQUARE };
enum up_whatis_shared { UP_WHATIS_NO, UP_WHATIS_CP, UP_WHATIS_RANKS };

struct up_whatis_match {
    const char *id, *what, *category, *option, *why;
    const char *dtype; // NULL: the compute dtype
    enum up_whatis_growth growth;
    int64_t tokens;      // of a micro-batch on one rank; of the sequence where growth is SQUARE; 0
    bool tokens_given;   // they follow from --seq; else they were solved for
    bool round;          // solved, and a round number fits the size
    double times_seq;    // tokens, over those that follow from --seq; NaN without it
    int64_t share;       // it is 1/share of the whole
    double bytes, error; // of the size: bytes / size - 1
    bool within;         // the printed digits
    double odds;         // larger is likelier; comparable within one answer
};

enum { UP_WHATIS_MOST = 512 };
struct up_whatis_answer {
    struct up_whatis_match *matches; // likeliest first; owned
    int count;
    bool explained; // something fits at the tokens given, or without any
};

/* Candidates within 10%. With `seq` those at its tokens; where none of them fits, also what it
 * would be at other tokens. */
enum up_status up_whatis(const struct up_whatis_question *question, struct up_whatis_answer *answer,
                         struct up_error *err);
void up_whatis_release(struct up_whatis_answer *answer);

#endif
