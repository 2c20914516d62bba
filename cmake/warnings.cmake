add_library(terrace_warnings INTERFACE)
target_compile_options(terrace_warnings INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual
  -Wno-missing-field-initializers -Werror)
# g++ 12 at -O3 sees uninitialised values in the empty half of a StatusOr.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(terrace_warnings INTERFACE -Wno-maybe-uninitialized)
endif()
