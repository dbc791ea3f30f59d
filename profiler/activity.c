#include "profiler/activity.h"

#include <stdio.h>
#include <string.h>

const char *up_owner_of(char out[UP_OWNER_TEXT], const char *path)
{
    static const struct {
        const char *file, *owner;
    } known[] = {{"libnccl", "nccl"},
                 {"libcublas", "cublas"},
                 {"libcudnn", "cudnn"},
                 {"libcupti", "cupti"},
                 {"libcuda.so", "context"}};
    const char *slash = path ? strrchr(path, '/') : NULL;
    const char *file = slash ? slash + 1 : path;
    if (!file || !*file) file = "unknown";
    for (int i = 0; i < UP_COUNT(known); i++)
        if (!strncmp(file, known[i].file, strlen(known[i].file))) file = known[i].owner;
    snprintf(out, UP_OWNER_TEXT, "%s", file);
    return out;
}

void up_clock_map_add(struct up_clock_map *map, int64_t theirs, int64_t ours)
{
    map->before = map->last;
    map->last.theirs = theirs;
    map->last.ours = ours;
    map->readings++;
}

// By how much ours gets ahead for each nanosecond of theirs; 0 where two readings do not tell.
static double drift(const struct up_clock_map *map)
{
    static const double most = 1e-3; // clocks that are merely bad are better than that
    double theirs = (double)(map->last.theirs - map->before.theirs);
    double ours = (double)(map->last.ours - map->before.ours);
    if (map->readings < 2 || theirs <= 0) return 0;
    double rate = (ours - theirs) / theirs;
    return rate > -most && rate < most ? rate : 0;
}

int64_t up_clock_map_ours(const struct up_clock_map *map, int64_t theirs)
{
    if (!map->readings) return theirs;
    int64_t since = theirs - map->last.theirs;
    return map->last.ours + since + (int64_t)((double)since * drift(map));
}
