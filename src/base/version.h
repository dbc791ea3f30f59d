#ifndef UP_BASE_VERSION_H
#define UP_BASE_VERSION_H

/* "0.1", from CMakeLists.txt. */
extern const char up_version[];

#endif
