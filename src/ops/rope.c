/* RoPE's frequencies, for every device kind. */
#include "ops/rope.h"

#include <math.h>

double up_rope_frequency(const struct up_rope_config *config, int64_t pair, int64_t head_dim)
{
    double f = pow(config->theta, -2.0 * (double)pair / (double)head_dim);
    if (!config->llama3) return f;

    double wavelength = 2 * M_PI / f;
    if (wavelength < config->original_length / config->high_freq) return f;
    if (wavelength > config->original_length / config->low_freq) return f / config->factor;
    double s = (config->original_length / wavelength - config->low_freq) /
               (config->high_freq - config->low_freq);
    return (1 - s) * f / config->factor + s * f;
}
