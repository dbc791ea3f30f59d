/* Machine files: the input is the file. */
#include "tests/fuzz/fuzz.h"
#include "trainer/forecast/machine.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[128];
    struct up_machine machine;
    struct up_error err = {0};
    fuzz_start();
    fuzz_write("machine.json", data, size);
    enum up_status rc = up_machine_find(fuzz_path(path, "machine.json"), &machine, &err);
    fuzz_check(rc, &err);
    if (rc != UP_OK) return 0;
    for (int i = 0; i <= UP_COST_ATTENTION_BACKWARD; i++)
        FUZZ_EXPECT(machine.flops[i] > 0 && machine.narrow_flops[i] >= 0);
    FUZZ_EXPECT(machine.launch_s > 0 && machine.memory_bytes_per_s > 0);
    FUZZ_EXPECT(machine.device_bytes >= 0 && machine.host_bytes >= 0);
    char *text = up_machine_json(&machine);
    FUZZ_EXPECT(text);
    free(text);
    return 0;
}
