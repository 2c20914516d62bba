# Installed: the library, its public headers, and a CMake package for
#   find_package(terrace)
#   target_link_libraries(app PRIVATE terrace::terrace)
# and where it was built with LibTorch, its optimizers for that, for
#   find_package(terrace COMPONENTS torch)
#   target_link_libraries(app PRIVATE terrace::torch)
include(CMakePackageConfigHelpers)
set(terrace_package "${CMAKE_INSTALL_LIBDIR}/cmake/terrace")

install(TARGETS terrace EXPORT terrace-targets
  ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}"
  LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
  FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(EXPORT terrace-targets NAMESPACE terrace::
  DESTINATION "${terrace_package}")

if(TARGET terrace_cuda)
  install(TARGETS terrace_cuda LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
endif()
if(TARGET terrace_torch_cuda)
  install(TARGETS terrace_torch_cuda
    LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT torch)
endif()

if(TARGET terrace_torch)
  install(TARGETS terrace_torch EXPORT terrace-torch-targets
    ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT torch
    LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT torch
    FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" COMPONENT torch)
  install(EXPORT terrace-torch-targets NAMESPACE terrace::
    DESTINATION "${terrace_package}" COMPONENT torch)
  install(FILES cmake/FindTerraceTorch.cmake
    DESTINATION "${terrace_package}" COMPONENT torch)
endif()

configure_package_config_file(cmake/terrace-config.cmake.in
  "${CMAKE_CURRENT_BINARY_DIR}/terrace-config.cmake"
  INSTALL_DESTINATION "${terrace_package}"
  NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(
  "${CMAKE_CURRENT_BINARY_DIR}/terrace-config-version.cmake"
  COMPATIBILITY SameMinorVersion)  # 0.x: a minor release may change the API
install(FILES
  "${CMAKE_CURRENT_BINARY_DIR}/terrace-config.cmake"
  "${CMAKE_CURRENT_BINARY_DIR}/terrace-config-version.cmake"
  DESTINATION "${terrace_package}")
