/* How a machine's figures stand to each other, and to the work that a config gives it. */
#include "trainer/forecast/figures.h"
#include "trainer/forecast/machine.h"

#include <math.h>

/* --- Of attention --------------------------------------------------------------------------------
 */

enum up_machine_figure up_figure_of_attention(bool backward, int64_t head_dim, bool own)
{
    static const enum up_machine_figure wide[2][2] = {
        {UP_FIGURE_ATTENTION_FORWARD, UP_FIGURE_ATTENTION_FORWARD_OWN},
        {UP_FIGURE_ATTENTION_BACKWARD, UP_FIGURE_ATTENTION_BACKWARD_OWN}};
    enum up_machine_figure figure = wide[backward][own];
    return up_head_is_narrow(head_dim) ? up_figure_twin(figure) : figure;
}

enum up_machine_figure up_figure_twin(enum up_machine_figure figure)
{
    static const enum up_machine_figure pairs[][2] = {
        {UP_FIGURE_ATTENTION_FORWARD, UP_FIGURE_ATTENTION_FORWARD_64},
        {UP_FIGURE_ATTENTION_BACKWARD, UP_FIGURE_ATTENTION_BACKWARD_64},
        {UP_FIGURE_ATTENTION_FORWARD_OWN, UP_FIGURE_ATTENTION_FORWARD_OWN_64},
        {UP_FIGURE_ATTENTION_BACKWARD_OWN, UP_FIGURE_ATTENTION_BACKWARD_OWN_64}};
    for (int i = 0; i < UP_COUNT(pairs); i++)
        for (int j = 0; j < 2; j++)
            if (pairs[i][j] == figure) return pairs[i][1 - j];
    return UP_FIGURE_COUNT;
}

double up_figure_by_twin(const struct up_figures *known, enum up_machine_figure figure, double twin)
{
    double here = known->of[figure], there = known->of[up_figure_twin(figure)];
    double value = twin * here / (there > 0 ? there : here);
    return value > 0 && value < 0x1p60 ? value : here; // an absurd twin, or none is known
}

enum up_machine_figure up_figure_of_run(bool backward)
{
    return backward ? UP_FIGURE_ATTENTION_BACKWARD_RUN : UP_FIGURE_ATTENTION_FORWARD_RUN;
}

void up_figures_check_run(struct up_figures *known, bool backward, double runs, double seconds)
{
    double *run_s = &known->of[up_figure_of_run(backward)];
    if (seconds > 0 && runs * *run_s >= seconds) *run_s = 0;
}

/* --- Of copies -----------------------------------------------------------------------------------
 */

enum up_machine_figure up_figure_of_node(enum up_machine_figure figure)
{
    return figure == UP_FIGURE_TO_HOST ? UP_FIGURE_NODE_TO_HOST : UP_FIGURE_NODE_FROM_HOST;
}

// The node's is told where it is what held them up, and where it is more than was known.
struct up_copy_figures up_figures_of_copies(const struct up_figures *known,
                                            enum up_machine_figure figure, double rate,
                                            double alone, int64_t devices)
{
    static const double near = 0.95;
    double device = known->of[figure], node = known->of[up_figure_of_node(figure)];
    double all = rate * (double)devices;
    bool held_up = devices > 1 &&
                   (alone > 0 ? rate < near * alone : node > 0 && node / (double)devices < device);
    struct up_copy_figures told = {.device = alone};
    if (!(alone > 0) && (!held_up || rate > device)) told.device = rate;
    if (held_up || (node > 0 && all > node)) told.node = all;
    return told;
}

/* --- A config's machine --------------------------------------------------------------------------
 */

// Each device at its own pace, or at its share of what the node's together get.
static double shared(double alone, double node, int64_t devices)
{
    return node > 0 ? fmin(alone, node / (double)devices) : alone;
}

struct up_device *up_machine_dry_device(const struct up_machine *machine,
                                        const struct up_config *config, struct up_error *err)
{
    struct up_machine m = *machine;
    int64_t devices = up_machine_neighbours(machine, up_config_ranks(config));
    m.to_host_bytes_per_s = shared(m.to_host_bytes_per_s, m.node_to_host_bytes_per_s, devices);
    m.from_host_bytes_per_s =
        shared(m.from_host_bytes_per_s, m.node_from_host_bytes_per_s, devices);
    m.own_attention = config->own_attention;
    return up_device_dry_create(config->as, &m, err);
}
