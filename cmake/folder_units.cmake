# terrace_folder_units(TARGET...): the sources of a folder are compiled as one
# unit, so that headers, LibTorch's above all, are read once a folder and not
# once a source. A name of an unnamed namespace is then one of its folder's. With
# TERRACE_FOLDER_UNITS=OFF, as in the sanitisers' presets, every source is a unit
# and shows that it includes what it uses. Sources that have flags of their own
# stay alone.
option(TERRACE_FOLDER_UNITS "Compile the sources of a folder as one unit" ON)

function(terrace_folder_units)
  if(NOT TERRACE_FOLDER_UNITS)
    return()
  endif()
  foreach(target IN LISTS ARGN)
    get_target_property(folder ${target} SOURCE_DIR)
    get_target_property(sources ${target} SOURCES)
    foreach(source IN LISTS sources)
      cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY "${folder}" NORMALIZE)
      cmake_path(GET source PARENT_PATH group)
      cmake_path(RELATIVE_PATH group BASE_DIRECTORY "${PROJECT_SOURCE_DIR}")
      string(REPLACE "/" "_" group "${group}")
      set_source_files_properties("${source}" TARGET_DIRECTORY ${target}
        PROPERTIES UNITY_GROUP "${group}")
    endforeach()
    set_target_properties(${target} PROPERTIES
      UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  endforeach()
endfunction()
