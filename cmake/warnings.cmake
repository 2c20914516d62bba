add_library(terrace_warnings INTERFACE)
target_compile_options(terrace_warnings INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual
  -Wno-missing-field-initializers -Werror)
