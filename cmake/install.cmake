# Installed: the library, its public headers and a CMake package.
