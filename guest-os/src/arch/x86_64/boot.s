# From the PVH entry, and from a start-up interrupt, to Rust in 64-bit mode.
#
# PVH (Xen's docs/misc/pvh.pandoc): 32-bit protected mode, flat segments, paging off, interrupts off, EBX = start info.

# ELF note 18 of "Xen", XEN_ELFNOTE_PHYS32_ENTRY: where a loader enters.
    .section .note.pvh, "a", @note
    .balign 4
    .long 4, 8, 18
    .asciz "Xen"
    .quad pvh_entry

    .section .text.boot, "ax"
    .code32
    .global pvh_entry
pvh_entry:
    cli
    cld
    lgdt [boot_gdt_pointer]
    mov esi, ebx
    mov eax, 0x80000000
    cpuid
    cmp eax, 0x80000001
    jb no_long_mode
    mov eax, 0x80000001             # EDX bit 29: long mode
    cpuid
    bt edx, 29
    jnc no_long_mode

# The first 4 GiB, as they are, in pages of 2 MiB: enough to read what the loader left and to build the real tables.
    mov eax, offset boot_pdpt + 3
    mov [boot_pml4], eax
    mov edi, offset boot_pdpt
    mov eax, offset boot_pd + 3
    mov ecx, 4
1:  mov [edi], eax
    add edi, 8
    add eax, 4096
    dec ecx
    jnz 1b
    mov edi, offset boot_pd
    mov eax, 0x83                   # present, writable, 2 MiB
    mov ecx, 2048
2:  mov [edi], eax
    add edi, 8
    add eax, 0x200000
    dec ecx
    jnz 2b
    mov eax, offset boot_pml4
    mov edi, offset first_cpu
    jmp to_long_mode

# What a CPU without long mode can still say, and the way out: the exit device's value for a failed run.
no_long_mode:
    mov esi, offset no_long_mode_text
1:  lodsb
    test al, al
    jz 2f
    mov dx, 0x3f8
    out dx, al
    jmp 1b
2:  mov eax, 2
    mov dx, 0xf4
    out dx, eax
3:  hlt
    jmp 3b

# EAX = page tables, EDI = where to go on. ESI is kept, no stack is used.
to_long_mode:
    mov cr3, eax
    mov eax, cr4
    or eax, 0x20                    # PAE
    mov cr4, eax
    mov eax, 0x80000001             # EDX bit 20: no-execute
    cpuid
    shr edx, 9
    and edx, 0x800                  # as NXE, bit 11 of EFER
    mov ebp, edx
    mov ecx, 0xc0000080
    rdmsr
    or eax, 0x100                   # LME
    or eax, ebp
    wrmsr
    mov eax, 0x80010033             # PG, WP, NE, ET, MP, PE; CD and NW, which INIT sets, are clear
    mov cr0, eax
    .byte 0xea                      # far jump into 64-bit code
    .long long_mode
    .word 0x08

    .code64
long_mode:
    mov ax, 0x10
    mov ds, ax
    mov es, ax
    mov ss, ax
    xor eax, eax
    mov fs, ax
    mov gs, ax
    xor ebp, ebp
    mov edi, edi
    jmp rdi

first_cpu:
    mov esp, offset __boot_stack_top
    mov edi, esi
    call {start}

# Where the other CPUs come from the page below.
    .code32
other_cpu:
    mov ax, 0x10
    mov ds, ax
    mov es, ax
    mov ss, ax
    mov eax, offset {page_tables}
    mov edi, offset next_cpu
    jmp to_long_mode

# Each CPU takes the next block of memory for itself; one that was not asked for finds none left.
    .code64
next_cpu:
    mov edi, 1
    lock xadd [rip + {next_block}], edi
    cmp edi, [rip + {blocks}]
    jae 1f
    mov rsp, rdi
    imul rsp, rsp, {block_bytes}
    add rsp, [rip + {first_stack_top}]
    call {start_other}
1:  hlt
    jmp 1b

    .section .rodata.boot, "a"
no_long_mode_text:
    .asciz "doorpost: the guest's CPU model has no 64-bit mode; use one that has (QEMU: -cpu max)\n"

# Copied to a page below 1 MiB: real mode, at offset 0 of the code segment.
    .global start_up_code
    .global start_up_code_end
    .code16
start_up_code:
    cli
    cld
    mov ax, cs
    mov ds, ax
    .byte 0x66, 0x0f, 0x01, 0x16    # lgdt with a 32-bit base, at a 16-bit address
    .word start_up_gdt - start_up_code
    mov eax, cr0
    or al, 1
    mov cr0, eax
    .byte 0x66, 0xea                # far jump with a 32-bit offset
    .long other_cpu
    .word 0x18
    .balign 4
start_up_gdt:
    .word 31
    .long boot_gdt
start_up_code_end:
    .code64

    .section .data.boot, "aw"
    .balign 16
boot_gdt:
    .quad 0
    .quad 0x00af9b000000ffff        # 0x08: 64-bit code
    .quad 0x00cf93000000ffff        # 0x10: data
    .quad 0x00cf9b000000ffff        # 0x18: 32-bit code
boot_gdt_pointer:
    .word 31
    .long boot_gdt

    .section .bss.pages, "aw", @nobits
    .balign 4096
boot_pml4: .skip 4096
boot_pdpt: .skip 4096
boot_pd:   .skip 16384
