# The functions that tests/torture/faults.h makes fail: upipe's own calls of them go to __wrap_<name>.
set(wrapped malloc calloc realloc reallocarray aligned_alloc strdup asprintf mmap pthread_create
  json_object json_array json_integer json_real json_string json_pack json_loads json_loadb json_dumps
  json_object_set_new json_array_append_new
  open fopen fread read pread write pwrite access stat fstat ftruncate fsync fallocate rename renameat mkdir mkdirat close)
list(TRANSFORM wrapped PREPEND "-Wl,--wrap=")
target_link_options(torture_test_faults PRIVATE ${wrapped})
