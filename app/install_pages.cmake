# At `cmake --install`: the man page and bash's completion, which the executable writes of itself. One that can't run
# here, as on a machine without a driver, leaves them out with a warning. Reads TRIREME, MAN and SHARE (below the
# prefix).
function(write_page path)
  execute_process(COMMAND ${TRIREME} ${ARGN} OUTPUT_VARIABLE text RESULT_VARIABLE failed ERROR_VARIABLE why)
  if(failed)
    message(WARNING "${TRIREME} does not run here (${failed}), so there is no ${path}: ${why}")
    return()
  endif()
  set(file "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/${path}")
  message(STATUS "Installing: ${file}")
  file(WRITE "${file}" "${text}")
  # Into install_manifest.txt, by which `make uninstall` goes.
  set(CMAKE_INSTALL_MANIFEST_FILES ${CMAKE_INSTALL_MANIFEST_FILES} "${CMAKE_INSTALL_PREFIX}/${path}" PARENT_SCOPE)
endfunction()
write_page(${MAN}/man1/trireme.1 help --man)
write_page(${SHARE}/bash-completion/completions/trireme completion bash)
