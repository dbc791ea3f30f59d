/* Techniques as rules on recorded lifetimes (recorded.h): the counterfactual of a run whose step
 * cannot be run again. The new peak is the highest moment of the lifetimes as the rules leave them,
 * so that where it moves and what dominates there come from the same replay as the recorded peak.
 */
#ifndef UP_REPORT_RULES_H
#define UP_REPORT_RULES_H

#include "report/advice/recorded.h"
#include "trainer/advisor/technique.h"

/* Techniques that are on besides those of the run. */
typedef uint32_t up_rule_set;
#define UP_RULE_BIT(technique) ((up_rule_set)1 << (technique))

extern const char *const up_rule_assumptions[UP_TECHNIQUE_COUNT];

/* For each technique NULL where it can be had on top of `set`; else why not: what the trace does
 * not tell, or that there is nothing for it to shrink. */
void up_rule_obstacles(const struct up_recorded *recorded, up_rule_set set,
                       const char *obstacles[UP_TECHNIQUE_COUNT]);

/* "--tile-loss 1K": what upipe-train would be given for it. */
void up_rule_options(const struct up_recorded *recorded, up_rule_set set,
                     enum up_technique technique, char *text, size_t size);
enum { UP_RULE_OPTIONS = 64 };

/* A lifetime as the rules leave it. */
struct up_ruled {
    struct up_lifetime life;
    const struct up_recorded_tensor *of; // NULL: a buffer that a technique needs
    enum up_category category;           // of such a buffer
    const char *name;                    // likewise
};

/* All that is on the device under `set`; and what is in host memory because of it. To be freed. */
enum up_status up_rules_apply(const struct up_recorded *recorded, up_rule_set set,
                              enum up_space space, struct up_ruled **ruled, int64_t *count,
                              struct up_error *err);

#endif
